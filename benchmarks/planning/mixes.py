"""Chains whose parts take as long as each other, or one of which is slow: the mixes that are held against the bound."""

from collections.abc import Iterator
from typing import NamedTuple

SLOW, QUICK, QUICK_LINK = 0.060, 0.020, 0.015
FORWARD = 0.4
"""The part of a worker's seconds that its forward takes."""
OFF_BEAT = 1.003
"""Links take so much more, so that nothing comes at the very moment at which a worker is done with something else."""
SHORT_OF_THE_BOUND = {
    (3, 2, "slow middle"): 1.07,
    (3, 2, "slow computers"): 1.13,
    (3, 3, "slow computers"): 1.13,
    (4, 2, "slow computers"): 1.10,
    (4, 3, "slow computers"): 1.10,
    (4, 5, "slow computers"): 1.09,
}
"""By workers, K and mix: the seconds of a step over the bound at most, where they are more than `NEAR_THE_BOUND`."""
NEAR_THE_BOUND = 1.05


class Mix(NamedTuple):
    """Seconds of each worker for a step, and of each hop for a feature and for an error gradient."""

    name: str
    workers: tuple[float, ...]
    hops: tuple[float, ...]

    @property
    def compute(self) -> list[tuple[float, float]]:
        """Seconds forward and backward, by worker."""
        return [(FORWARD * seconds, (1 - FORWARD) * seconds) for seconds in self.workers]

    @property
    def carry(self) -> list[tuple[float, float]]:
        """Seconds up and down, by hop."""
        return [(OFF_BEAT * seconds, OFF_BEAT * seconds) for seconds in self.hops]


def mixes(workers: int) -> Iterator[Mix]:
    """The six mixes of a chain of so many workers, two or more; the slowest part takes 60 ms."""
    quick = (QUICK,) * (workers - 1)
    yield Mix("all equal", (SLOW,) * workers, (SLOW,) * (workers - 1))
    for name, slow in {"slow first": 0, "slow middle": workers // 2, "slow last": workers - 1}.items():
        yield Mix(name, tuple(SLOW if index == slow else QUICK for index in range(workers)), quick)
    yield Mix("slow link", (QUICK, *quick), (SLOW, *quick[1:]))
    yield Mix("slow computers", (SLOW,) * workers, (QUICK_LINK,) * (workers - 1))


def most_over_the_bound(workers: int, staleness: int, name: str) -> float:
    """Return the largest permitted ratio of a step's seconds to the bound on them."""
    return SHORT_OF_THE_BOUND.get((workers, staleness, name), NEAR_THE_BOUND)
