"""Samples that cannot be read (`data.on_error = "skip"`): which other ones stand for them, and how many may be so.

What stands for a sample is a function of seed, epoch and sample, so it is the same after a resume and in every process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import structlog
from torch import Tensor

from edge_agent.data.stacker import SampleKind
from shared.errors import DataError
from shared.model.random_state import derive_seed

T = TypeVar("T")

_log = structlog.get_logger(__name__)

MOST_TRIES = 20
"""Number of samples that are tried for one."""


class Unreadable(NamedTuple):
    """A sample in whose place another one is."""

    sample: int
    why: str
    """A sentence that names it."""


@dataclass(frozen=True)
class Spares:
    """The samples of an epoch that stand for those that cannot be read."""

    seed: int
    epoch: int
    pool: int | Tensor
    """Number of the samples to draw from, or the samples themselves, int64 [N]."""
    like: SampleKind | None = None
    """The kind that all samples have; None where the first one that can be read tells it."""

    def read(self, index: int, read: Callable[[int], T], unreadable: list[Unreadable]) -> tuple[T, int]:
        """Read a sample, or one that stands for it; return it with its own index. unreadable: takes those that cannot be read.

        read: raises DataError for such. Raises that of the last one if none can be read of many.
        """
        tried = index
        for attempt in range(MOST_TRIES):
            try:
                return read(tried), tried
            except DataError as error:
                unreadable.append(Unreadable(tried, str(error)))
            tried = self._other(index, attempt)
        raise DataError(f"{MOST_TRIES} samples were tried in turn and none could be read; {unreadable[-1].why}")

    def _other(self, index: int, attempt: int) -> int:
        count = self.pool if isinstance(self.pool, int) else len(self.pool)
        place = derive_seed(self.seed, "instead", self.epoch, index, attempt) % count
        return place if isinstance(self.pool, int) else int(self.pool[place])


class Skipping:
    """The samples of a run that could not be read in this process, with a limit on their number."""

    def __init__(self, seed: int, most: int) -> None:
        """most: different samples that may be so."""
        self._seed = seed
        self._most = most
        self._known = set[int]()
        self.like: SampleKind | None = None
        """The kind of the samples, once some were looked at."""
        self.by_step: dict[int, int] = {}
        """Number of samples that could not be read, by the step; steps without any are left out."""

    def spares(self, epoch: int, pool: int | Tensor) -> Spares:
        """Return what stands for samples of an epoch."""
        return Spares(self._seed, epoch, pool, self.like)

    def note(self, step: int, unreadable: list[Unreadable]) -> None:
        """Note the unreadable samples of a step's batch. Raises as `judge`."""
        self.by_step.pop(step, None)  # it may have been read before
        if unreadable:
            self.by_step[step] = len(unreadable)
            self.judge(unreadable)

    def judge(self, unreadable: list[Unreadable]) -> None:
        """Warn of each sample once. Raises DataError when they are too many."""
        for sample, why in unreadable:
            if sample in self._known:
                continue
            self._known.add(sample)
            if len(self._known) > self._most:
                raise DataError(
                    f"more samples cannot be read than data.max_skipped, {self._most}, allows; the last: {why}"
                )
            _log.warning("a sample cannot be read, so another one stands for it", sample=sample, reason=why)
