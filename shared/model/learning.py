"""Parameters as a user names them, and the choice of those that learn."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import translate
from itertools import accumulate
from typing import Literal

from shared.errors import ModelError

FrozenMode = Literal["train", "eval"]
"""The mode of modules of which nothing learns, while the others train."""
_WILDCARDS = frozenset("*?[")
_MAX_PATTERNS = 100
"""Patterns in one list of names, because each is tried on every parameter."""


class ParameterNames:
    """Chosen names, each of a parameter, of a module above parameters, or a pattern with `*`, `?` or `[`.

    A pattern has to fit the whole qualified name; its `*` stands for dots, too.
    """

    def __init__(self, key: str, names: Iterable[str]) -> None:
        """key: the configuration's key that has the names. Raises ModelError for too many patterns."""
        self._key = key
        self._names = tuple(dict.fromkeys(names))
        patterns = [name for name in self._names if not _WILDCARDS.isdisjoint(name)]
        if len(patterns) > _MAX_PATTERNS:
            raise ModelError(
                f"{key} has {len(patterns)} patterns; {_MAX_PATTERNS} are possible. The name of a module stands for all "
                "parameters under it"
            )
        self._plain = frozenset(self._names).difference(patterns)
        self._patterns = [(name, re.compile(translate(name))) for name in patterns]

    def of(self, parameter: str) -> list[str]:
        """List the chosen names that stand for a parameter."""
        above = self._plain.intersection(accumulate(parameter.split("."), "{}.{}".format))
        return [*above, *(name for name, pattern in self._patterns if pattern.match(parameter))]

    def chosen(self, parameters: Iterable[str], among: str = "the model has no parameter") -> set[str]:
        """Return those of the parameters that the names stand for.

        among: the parameters in words, for the refusal. Raises ModelError for a name that stands for none.
        """
        found, used = set(), set[str]()
        for parameter in parameters:
            if names := self.of(parameter):
                found.add(parameter)
                used.update(names)
        if unused := [name for name in self._names if name not in used]:
            raise ModelError(f"{self._key} names {unused[0]!r}, but {among} of that name, under it, or that fits it")
        return found


@dataclass(frozen=True, slots=True)
class Learning:
    """The parameters that learn: all but the frozen, or, where names are given, those alone."""

    frozen: tuple[str, ...] = ()
    """Names of parameters that do not learn."""
    learns: tuple[str, ...] = ()
    """Names of the only parameters that learn; empty where all do but the frozen."""
    frozen_mode: FrozenMode = "train"

    def unchanged(self, parameters: Collection[str]) -> set[str]:
        """Return those of a model's parameters that do not learn. Raises ModelError for a name that stands for none."""
        still = ParameterNames("model.frozen", self.frozen).chosen(parameters)
        if self.learns:
            still |= set(parameters) - ParameterNames("model.learns", self.learns).chosen(parameters)
        return still
