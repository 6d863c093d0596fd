"""What a model bears: the largest K, and at each cut the least bit width, that keep its accuracy within a budget.

Every question is a training or several, so few are asked. Assumed is that harm is monotone: what holds at some K holds at
every smaller one, and what holds at some width holds at every larger one. So K is tried in float32, the most first and then by
halves, each cut going on from what the cuts before it have left of it; the width is found by halves at that K, so that both
hold together. Near the budget chance decides: a difference within what the serial training differs by itself from seed to
seed is no loss. Knows nothing of how a network is trained.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from shared.planning.profile import BIT_WIDTHS

_log = structlog.get_logger(__name__)
FULL_BITS = BIT_WIDTHS[-1]
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Candidate:
    """What is trained: the fields of a deployment that decide accuracy."""

    cut: int
    staleness: int
    bits: int


@dataclass(frozen=True)
class Calibrated:
    """The answer."""

    max_staleness: int
    min_bits: dict[int, int]
    """By cut."""
    baseline: tuple[float, ...]
    """Accuracies of the serial training, one a seed."""


Accuracies = Callable[[Candidate], Awaitable[Sequence[float]]]
"""Trains a candidate with every seed; the share of the test samples that each got right."""


async def calibrate(accuracies: Accuracies, cuts: Sequence[int], most_staleness: int, budget: float) -> Calibrated:
    """Find what keeps within `budget` of the serial training's mean accuracy, a share of 1; `cuts` are not empty."""
    baseline = tuple(await accuracies(Candidate(cuts[0], 0, FULL_BITS)))
    spread = max(baseline) - min(baseline)
    if spread > budget:
        _log.warning(
            "serial accuracy differs from seed to seed by more than the budget; more epochs would tell more",
            spread_points=round(100 * spread, 2),
            budget_points=round(100 * budget, 2),
        )
    allowed, target = max(budget, spread), statistics.fmean(baseline)

    async def holds(candidate: Candidate) -> bool:
        return target - statistics.fmean(await accuracies(candidate)) <= allowed + _ROUNDING

    staleness = most_staleness
    for cut in cuts:
        if staleness and not await holds(Candidate(cut, staleness, FULL_BITS)):
            fewer = [Candidate(cut, fewer, FULL_BITS) for fewer in range(staleness)]
            staleness = (await last_that_holds(fewer, holds)).staleness
    min_bits = {}
    for cut in cuts:
        narrowing = [Candidate(cut, staleness, bits) for bits in reversed(BIT_WIDTHS)]
        min_bits[cut] = (await last_that_holds(narrowing, holds)).bits
    return Calibrated(staleness, min_bits, baseline)


async def last_that_holds(candidates: Sequence[Candidate], holds: Callable[[Candidate], Awaitable[bool]]) -> Candidate:
    """The last one that holds, where the first does, unasked, and all do that come before one that does."""
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if await holds(candidates[middle]):
            low = middle
        else:
            high = middle - 1
    return candidates[low]


def most_candidates(cuts: int, most_staleness: int) -> int:
    """How many candidates `calibrate` asks for at most."""
    staleness = 1 + max(most_staleness - 1, 0).bit_length() if most_staleness else 0
    return 1 + cuts * (staleness + (len(BIT_WIDTHS) - 1).bit_length())
