"""Tolerance of a model: the largest K, and at each cut the least bit width, that keep its score within a budget.

Every question is a training or several, so few are asked, and most of them short. Assumed is that harm is monotone: what
holds at some K holds at every smaller one, and what holds at some width holds at every larger one. So candidates are halved:
each answer leaves half of them, and each question is trained for twice as long as the one before. What is left at the end is
trained at full length before it is believed, K and width together. Near the budget chance decides: a difference within what
the serial training differs by itself from seed to seed is no loss. Knows nothing of how a network is trained.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from edge_agent.planning.measurements import FLOAT32_BITS

_log = structlog.get_logger(__name__)
WHOLE = 1.0
"""Length of a training whose answer is believed; shorter ones are shares of it."""
LONGEST_SHORT = WHOLE / 2
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Lossiness:
    """A candidate to train: the fields of a deployment that decide how good a model gets."""

    cut: int
    staleness: int
    bits: int


@dataclass(frozen=True)
class Calibrated:
    """The answer."""

    max_staleness: int
    min_bits: dict[int, int]
    """The fewest bits within the budget, by cut."""
    baseline: tuple[float, ...]
    """Scores of the whole serial training, one a seed."""


Scores = Callable[[Lossiness, float], Awaitable[Sequence[float]]]
"""Trains a candidate with every seed for a share of the full length; the score of each, of which more is better."""


async def calibrate(
    scores: Scores,
    cuts: Sequence[int],
    most_staleness: int,
    budget: float,
    bit_widths: Sequence[int],
    *,
    is_share: bool = False,
) -> Calibrated:
    """Find what keeps within `budget` of the serial training's mean score; `cuts` are not empty.

    bit_widths: those to try, rising; the last is float32's. is_share: the budget is a share of that mean.
    """
    judge = _Judge(scores, Lossiness(cuts[0], 0, FLOAT32_BITS), budget, is_share=is_share)
    baseline = tuple(await judge.serial(WHOLE))
    _warn_of_spread(baseline, judge.budget_of(baseline))
    staleness, min_bits = most_staleness, dict[int, int]()
    for cut in cuts:
        while cut not in min_bits:
            staleness = await judge.halve_staleness(cut, staleness)
            widths = [Lossiness(cut, staleness, bits) for bits in reversed(bit_widths)]
            held = await judge.confirmed(widths, await judge.halve(widths))
            if held is not None:
                min_bits[cut] = held.bits
            else:  # not even float32 holds at this K, which only a whole training showed
                fewer = [Lossiness(cut, fewer, FLOAT32_BITS) for fewer in range(staleness)]
                staleness = (await last_that_holds(fewer, judge.whole)).staleness
    return Calibrated(staleness, min_bits, baseline)


class _Judge:
    """The judge of whether candidates hold."""

    def __init__(self, scores: Scores, serial: Lossiness, budget: float, *, is_share: bool) -> None:
        self._scores, self._serial, self._budget, self._is_share = scores, serial, budget, is_share

    def budget_of(self, baseline: Sequence[float]) -> float:
        """Return what may be lost of the mean of these scores."""
        return self._budget * (abs(statistics.fmean(baseline)) if self._is_share else 1.0)

    async def serial(self, share: float) -> Sequence[float]:
        """Scores of the serial training of this length."""
        return await self._scores(self._serial, share)

    async def holds(self, candidate: Lossiness, share: float) -> bool:
        """Compared with serial trainings of the same length. One that is exact is serial, wherever the cut is."""
        if (candidate.staleness, candidate.bits) == (0, FLOAT32_BITS):
            return True
        baseline = await self.serial(share)
        allowed = max(self.budget_of(baseline), max(baseline) - min(baseline))
        lost = statistics.fmean(baseline) - statistics.fmean(await self._scores(candidate, share))
        return lost <= allowed + _ROUNDING

    async def whole(self, candidate: Lossiness) -> bool:
        """Judge a candidate by a training of full length."""
        return await self.holds(candidate, WHOLE)

    async def halve_staleness(self, cut: int, most: int) -> int:
        """The largest K at a cut as short trainings see it; the most is asked first, for models mostly bear it."""
        if most == 0 or await self.holds(Lossiness(cut, most, FLOAT32_BITS), LONGEST_SHORT):
            return most
        return (await self.halve([Lossiness(cut, fewer, FLOAT32_BITS) for fewer in range(most)])).staleness

    async def halve(self, candidates: Sequence[Lossiness]) -> Lossiness:
        """The last one that holds as short trainings see it, each twice as long as the one before."""
        shares = iter(short_shares(len(candidates)))
        return await last_that_holds(candidates, lambda candidate: self.holds(candidate, next(shares)))

    async def confirmed(self, candidates: Sequence[Lossiness], found: Lossiness) -> Lossiness | None:
        """`found`, or the last one before it that holds at full length; None where not even the first does."""
        if await self.whole(found):
            return found
        less = candidates[: candidates.index(found)]
        if not less or not await self.whole(less[0]):
            return None
        return await last_that_holds(less, self.whole)


async def last_that_holds(candidates: Sequence[Lossiness], holds: Callable[[Lossiness], Awaitable[bool]]) -> Lossiness:
    """The last one that holds, where the first does, unasked, and all do that come before one that does."""
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if await holds(candidates[middle]):
            low = middle
        else:
            high = middle - 1
    return candidates[low]


def short_shares(candidates: int) -> list[float]:
    """Lengths of the questions that halve so many candidates: the last is half a training, each before it half as long."""
    questions = max(candidates - 1, 0).bit_length()
    return [LONGEST_SHORT / 2**later for later in reversed(range(questions))]


def usual_shares(cuts: int, most_staleness: int, bit_widths: Sequence[int]) -> list[float]:
    """Lengths of the trainings of one seed that `calibrate` asks for where no short training misleads and K holds."""
    widths = short_shares(len(bit_widths))
    staleness = [LONGEST_SHORT] if most_staleness else []
    serial = sorted({*widths, *staleness})
    return [WHOLE, *serial, *cuts * [*staleness, *widths, WHOLE]]


def _warn_of_spread(baseline: Sequence[float], budget: float) -> None:
    spread = max(baseline) - min(baseline)
    if spread > budget:
        _log.warning(
            "the serial training differs from seed to seed by more than the budget; more epochs would tell more",
            spread=float(f"{spread:.4g}"),
            budget=float(f"{budget:.4g}"),
        )
