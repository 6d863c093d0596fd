"""Values: the tensors that blocks hand on, each with the block that made it, its readers, and the parameters it is made of.

A feature may hold a tensor that an earlier block has made and that the blocks between pass on as it is: then it is one value at
several boundaries.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple


class Made(NamedTuple):
    """The making of one tensor in a block."""

    parameters: frozenset[str]
    """Names of the block's parameters that have a part in it."""
    sources: frozenset[int]
    """The slots of the block's inputs that it is made of."""


@dataclass(frozen=True)
class Wiring:
    """The way of tensors through one block."""

    reads: frozenset[int]
    """The slots of the inputs that the block computes with. It passes the others on, or drops them."""
    outputs: tuple[int | Made, ...]
    """Each tensor that it hands on: the slot of the input that it passes on as it is, or the making of a new one."""

    @classmethod
    def opaque(cls, parameters: frozenset[str], inputs: int, passed: Sequence[int | None]) -> "Wiring":
        """Take a block of which nothing is known to use all that it is given.

        passed: by output, the slot of the input that it is; None where it is none.
        """
        everything = frozenset(range(inputs))
        made = Made(parameters, everything)
        return cls(everything, tuple(made if slot is None else slot for slot in passed))

    def then(self, other: "Wiring") -> "Wiring":
        """Return the wiring of two blocks that are one, this one first."""
        reads = set(self.reads)
        for slot in other.reads:
            reads |= {one} if isinstance(one := self.outputs[slot], int) else one.sources
        return Wiring(frozenset(reads), tuple(self._before(one) for one in other.outputs))

    def _before(self, one: int | Made) -> int | Made:
        if isinstance(one, int):
            return self.outputs[one]
        parameters, sources = set(one.parameters), set[int]()
        for slot in one.sources:
            before = self.outputs[slot]
            if isinstance(before, int):
                sources.add(before)
            else:
                parameters |= before.parameters
                sources |= before.sources
        return Made(frozenset(parameters), frozenset(sources))


@dataclass(frozen=True)
class Value:
    """One tensor that blocks hand on."""

    feature: int
    """The first feature that it is part of: 0 where it is an input, b + 1 where block b makes it."""
    slot: int
    """Its slot there."""
    readers: tuple[int, ...]
    """The blocks that compute with it, in order, each as often as it does; the count of blocks stands for the loss."""
    parameters: frozenset[str]
    """Names of the parameters that the making block puts into it."""
    sources: frozenset[int]
    """The values that it is made of, by their places among all."""
    shows: bool = False
    """True if raw samples can be read off it although parameters had a part in it."""


@dataclass(frozen=True)
class Values:
    """All values of a chain."""

    all: tuple[Value, ...]
    """In the order in which they come to be."""
    features: tuple[tuple[int, ...], ...]
    """By feature, the value in each slot, as its place among all."""
    public: frozenset[int] = frozenset()
    """The places of public inputs, and of what follows from these alone."""

    @cached_property
    def inputs_of(self) -> tuple[frozenset[int], ...]:
        """By place, the inputs that a value is made of; of an input itself."""
        found: list[frozenset[int]] = []
        for place, value in enumerate(self.all):
            sources = (found[source] for source in value.sources)
            found.append(frozenset({place}) if not value.feature else frozenset().union(*sources))
        return tuple(found)

    def place_of(self, value: Value) -> int:
        """Return the place of a value among all."""
        return self.features[value.feature][value.slot]

    def has_parameters(self, value: Value) -> bool:
        """Tell whether any parameter had a part in making a value."""
        return bool(value.parameters) or any(self.has_parameters(self.all[source]) for source in value.sources)

    def used(self, uses: Mapping[tuple[int, int], int]) -> "Values":
        """Return the same with each reader as often as it uses a value, by value and block where this is known."""
        counted = (
            replace(value, readers=tuple(each for each in value.readers for _ in range(uses.get((place, each), 1))))
            for place, value in enumerate(self.all)
        )
        return replace(self, all=tuple(counted))

    def showing(self, shown: Collection[int]) -> "Values":
        """Return the same where raw samples can be read off these values."""
        marked = (replace(value, shows=True) if place in shown else value for place, value in enumerate(self.all))
        return replace(self, all=tuple(marked))


def connect(wirings: Sequence[Wiring], inputs: int) -> Values:
    """Follow the tensors through blocks. inputs: how many tensors enter the first."""
    found = [Value(0, slot, (), frozenset(), frozenset()) for slot in range(inputs)]
    features = [tuple(range(inputs))]
    readers: dict[int, list[int]] = {}
    for index, wiring in enumerate(wirings):
        before, after = features[-1], []
        for slot in sorted(wiring.reads):
            readers.setdefault(before[slot], []).append(index)
        for slot, one in enumerate(wiring.outputs):
            if isinstance(one, int):
                after.append(before[one])
            else:
                sources = frozenset(before[source] for source in one.sources)
                found.append(Value(index + 1, slot, (), one.parameters, sources))
                after.append(len(found) - 1)
        features.append(tuple(after))
    for value in features[-1]:
        readers.setdefault(value, []).append(len(wirings))
    values = (
        Value(one.feature, one.slot, tuple(readers.get(place, ())), one.parameters, one.sources)
        for place, one in enumerate(found)
    )
    return Values(tuple(values), tuple(features))
