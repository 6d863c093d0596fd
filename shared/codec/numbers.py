"""The numbers of one tensor as a codebook is fitted to them: in order, each standing for several. Knows no codebook.

Of a large tensor they are a sample, and beside it its smallest and largest numbers. Sorting a sample would take most of a fit's
time, so it is counted in bins as wide as 1 / 128 of their distance from the mean, each standing for the mean of what is in it.
"""

import functools
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
N = TypeVar("N", bound=np.generic)

SAMPLE = 65536
"""Numbers that a fit looks at. The fit in a million errs at most 2 % more than a fit to all of them (a test holds it)."""
_FEW = 16384
"""Count of numbers up to which sorting is quicker than counting in bins."""
_COLUMNS = 16384
"""Number of columns in each of which a large tensor's smallest and largest number is looked for."""
_BINS = 1 << 16
"""The sign, the exponent and seven bits of the mantissa of a float32."""


class Numbers(NamedTuple):
    """Rising numbers about zero, each standing for several."""

    values: Floats
    centre: float
    """Offset that was subtracted from all numbers."""
    counts: Floats
    """Running counts, [n + 1]: the numbers that those before each place stand for together. `sums` has their running sums."""
    sums: Floats
    squares: float
    """The sum of all squares."""

    @classmethod
    def of(cls, values: Floats, weights: Floats) -> Self:
        """values: rising. weights: how many each stands for."""
        counts, sums = np.zeros((2, len(values) + 1))
        weights.cumsum(out=counts[1:])
        centre = float((values * weights).sum() / counts[-1])
        values = values - centre
        weighted = values * weights
        weighted.cumsum(out=sums[1:])
        return cls(values, centre, counts, sums, float((weighted * values).sum()))

    def cells(self, levels: Floats) -> tuple[Floats, Floats]:
        """Count and sum of the numbers nearest to each level. levels: [..., 2^k], rising."""
        inner = np.searchsorted(self.values, (levels[..., 1:] + levels[..., :-1]) / 2)
        edges = np.zeros((*inner.shape[:-1], inner.shape[-1] + 2), inner.dtype)
        edges[..., 1:-1], edges[..., -1] = inner, len(self.values)
        counts, sums = self.counts[edges], self.sums[edges]
        return counts[..., 1:] - counts[..., :-1], sums[..., 1:] - sums[..., :-1]

    def error(self, levels: Floats, counts: Floats, sums: Floats) -> Floats:
        """Squared error of all numbers, each at its level."""
        error: Floats = self.squares + (levels * (levels * counts - 2 * sums)).sum(-1)
        return error


class SampledNumbers(NamedTuple):
    """At most SAMPLE numbers of a tensor, evenly spread, and beside them the smallest and largest ones that lie beyond them.

    Rare large numbers make most of the error of a codebook that does not know them, and a sample misses them.
    """

    drawn: Floats32
    below: Floats32
    above: Floats32
    each: float
    """Count of numbers that each drawn one stands for; one of the others stands for itself."""

    @classmethod
    def of(cls, values: Tensor) -> Self | None:
        """values: 1-D float32, not empty. None where one of them is not finite."""
        numbers = values.numpy()
        lows, highs = _extremes(numbers)
        if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
            return None
        drawn = numbers if len(numbers) <= SAMPLE else numbers[_places(len(numbers))]
        below, above = np.sort(lows[lows < drawn.min()]), np.sort(highs[highs > drawn.max()])
        return cls(drawn, below, above, (len(numbers) - len(below) - len(above)) / len(drawn))

    @property
    def is_large(self) -> bool:
        """Tell whether it takes longer to sort than to count in bins."""
        return len(self.drawn) > _FEW

    def in_bins(self) -> Numbers:
        """Return the drawn numbers, each moved by at most 1 / 128 of its distance from the mean; no sum changes."""
        # Halves, because the distance of two float32 may lie beyond float32.
        centre = self.drawn.mean(dtype=np.float64) / 2
        halves = self.drawn * np.float32(0.5) - np.float32(centre)
        bins = (halves.view(np.uint32) >> 16).astype(np.intp)
        counts = _rising(np.bincount(bins, minlength=_BINS))
        sums = _rising(np.bincount(bins, halves, _BINS))
        filled = np.flatnonzero(counts)
        held = counts[filled]
        return self._with_others(2 * (sums[filled] / held + float(np.float32(centre))), held * self.each)

    def in_order(self) -> Numbers:
        """Return the drawn numbers as they are."""
        return self._with_others(np.sort(self.drawn), np.full(len(self.drawn), self.each))

    def _with_others(self, drawn: NDArray[np.floating[Any]], weights: NDArray[np.floating[Any]]) -> Numbers:
        values = np.concatenate([self.below, drawn, self.above], dtype=np.float64)
        return Numbers.of(values, np.concatenate([np.ones(len(self.below)), weights, np.ones(len(self.above))]))


def _rising(bins: NDArray[N]) -> NDArray[N]:
    """Bins of the uppermost bits of float32 in the order of the numbers: of the negative ones, the largest bits are least."""
    return np.concatenate([bins[: _BINS // 2 - 1 : -1], bins[: _BINS // 2]])


def _extremes(numbers: Floats32) -> tuple[Floats32, Floats32]:
    """The smallest and the largest number of each column; what is left over belongs to both, and few numbers wholly so.

    Numbers of a column lie far apart, so that of large ones that lie together hardly any is hidden behind another.
    """
    rows = len(numbers) // _COLUMNS if len(numbers) > SAMPLE else 0
    table, rest = numbers[: rows * _COLUMNS].reshape(rows, _COLUMNS), numbers[rows * _COLUMNS :]
    if rows == 0:
        return rest, rest
    return np.concatenate([table.min(0), rest]), np.concatenate([table.max(0), rest])


def _places(count: int) -> NDArray[np.int64]:
    """SAMPLE of `count` places: one of each of as many equal parts, at random in it, so that no stride of a tensor shows."""
    return ((np.arange(SAMPLE) + _jitter()) * (count / SAMPLE)).astype(np.int64)


@functools.cache
def _jitter() -> Floats:
    """Random numbers of 0 to 1, always the same ones."""
    return np.random.default_rng(0).random(SAMPLE)
