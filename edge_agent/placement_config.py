"""The section that says which worker runs which blocks, and whether the workers of a configuration fit together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from shared.bounds import AGENT
from shared.config import Section


def _check_ranges(given: Any) -> tuple[str, ...]:
    """One range of blocks, or a list of them, which may be empty, as a tuple. Raises ValueError."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("no ranges")
    if texts:
        from shared.placement import (
            parse_range,
        )  # few configurations name any, and most commands need nothing else of it

        for text in texts:
            parse_range(text)
    return tuple(texts)


BlockRanges = Annotated[
    tuple[str, ...],
    BeforeValidator(_check_ranges),
    Field(
        json_schema_extra={
            "allowed": 'a range of blocks as "2:6", or "6:" for all from block 6 on, or a list of such ranges, which may be '
            "empty"
        }
    ),
]


class PlacementSection(Section):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, BlockRanges] = Field(init=False)

    labels: str | None = Field(default=None, examples=["edge"])
    """Worker that computes the loss, which must be the worker with the last block. Nobody else may have labels under
    any placement that comes later: with "edge", no label and no output leaves this device."""
    file: Path | None = Field(default=None, examples=["placement.json"])
    """A placement as a JSON document (schema isthmus.placement/v1), for what ranges of blocks cannot say: samples that are
    divided among workers, owners of shared blocks, codecs of single links. It takes the place of all other keys here."""

    @property
    def blocks(self) -> Mapping[str, tuple[str, ...]]:
        """The ranges of each worker of the session, as they were written; none of one that has no blocks for now."""
        return self.__pydantic_extra__ or {}

    @property
    def given(self) -> bool:
        """True if this section says anything."""
        return self != PlacementSection()

    @model_validator(mode="after")
    def _says_all_or_nothing(self) -> Self:
        if self.file is not None and (self.blocks or self.labels is not None):
            others = ", ".join([*self.blocks, *(["labels"] if self.labels is not None else [])])
            raise ValueError(f"file holds the whole placement; leave {others} out, or file")
        if self.labels is not None and not self.blocks:
            raise ValueError(
                "labels says who computes the loss, but nobody has blocks; name the blocks of every worker"
            )
        return self


def check_workers(
    trainers: Iterable[str],
    placement: PlacementSection,
    permitted: Mapping[str, Iterable[str]],
    others: Mapping[str, Iterable[str]],
) -> None:
    """Refuse two workers of one name, and names that no worker has. Raises ValueError.

    trainers: their names. permitted: trainers that keys permit something, by the key. others: workers that keys name, by the
    key.
    """
    names = list(trainers)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"trainers: two are named {twice[0]!r}; give each a name of its own")
    labels = () if placement.labels is None else (placement.labels,)
    for key, known, named in (
        ("placement", [AGENT, *names], placement.blocks),
        ("placement.labels", [AGENT, *names], labels),
        *((key, names, named) for key, named in permitted.items()),
        *((key, [AGENT, *names], named) for key, named in others.items()),
    ):
        if unknown := [name for name in named if name not in known]:
            raise ValueError(f"{key} names {unknown[0]!r}, which is not configured; it may name {', '.join(known)}")
