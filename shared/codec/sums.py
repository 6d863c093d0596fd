"""Codebooks of sums of signs: an offset, plus or minus each of k coefficients, fitted to the numbers of one tensor.

A fit minimises the squared error of rounding each number to the nearest of the 2^k sums. It goes over a sorted sample, in which
a codebook's cells are ranges: between two edges lie a count and a sum, and no step looks at single numbers. Knows no bytes.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

SAMPLE = 65536
"""Numbers that a fit looks at. The error of what it finds in a million was at most 0.6 % above that of a fit to all of them,
on three distributions at 2 to 4 bits."""
_COLUMNS = 16384
"""A large tensor's smallest and largest number is looked for in each of so many columns."""
_STEPS = 24
"""Most steps of a fit; ten do nearly always."""
_ENOUGH = 1e-4
"""A fit ends where a step saves less than this part of the error."""
_TRIMMED = (0.0, 1e-4, 1e-3, 5e-3, 2e-2, 6e-2)
"""Parts of the numbers that a start leaves beyond its range, below and above."""
_LARGEST = float(np.finfo(np.float32).max)


@functools.cache
def signs(bits: int) -> Floats:
    """What each of the 2^bits sums has of each parameter, [2^bits, 1 + bits]: 1 of the offset, 1 or -1 of a coefficient."""
    which = np.arange(2**bits)[:, None] >> np.arange(bits)
    return np.concatenate([np.ones((2**bits, 1)), (which & 1) * 2.0 - 1.0], axis=1)


def levels_of(parameters: NDArray[np.float32]) -> NDArray[np.float32]:
    """The 2^k sums, rising, of an offset and k coefficients; what lies beyond float32 is taken as its largest value."""
    sums = signs(len(parameters) - 1) @ parameters.astype(np.float64)
    return np.sort(np.clip(sums, -_LARGEST, _LARGEST).astype(np.float32))


def fit(values: Tensor, bits: int) -> NDArray[np.float32] | None:
    """The offset and the coefficients, rising, of the best codebook that is found; None where there is a NaN or nothing finite.

    values: 1-D float32, not empty. An infinity counts as the largest or smallest finite value.
    """
    lows, highs = _extremes(values)
    if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        finite = values[values.isfinite()]
        if bool(values.isnan().any()) or not finite.numel():
            return None
        values = values.clamp(finite.amin(), finite.amax())
        lows, highs = _extremes(values)
    sample = _Sample.of(values, lows, highs)
    starts = [_best_grid(sample, bits), _residues(sample, bits), *_sums_themselves(sample, bits)]
    parameters = min((_descend(sample, start) for start in starts), key=lambda found: found[0])[1]
    parameters[0] += sample.centre
    parameters[1:] = np.sort(np.abs(parameters[1:]))
    return np.clip(parameters, -_LARGEST, _LARGEST).astype(np.float32)


class _Sample(NamedTuple):
    """Sorted numbers about zero, each standing for several."""

    values: Floats
    centre: float
    """What was taken from all of them."""
    counts: Floats
    """Of those before each place, [n + 1]: what they stand for together, and below their sum."""
    sums: Floats
    squares: float
    """The sum of all squares."""

    @classmethod
    def of(cls, values: Tensor, lows: NDArray[np.float32], highs: NDArray[np.float32]) -> "_Sample":
        """At most SAMPLE numbers, evenly spread, and beside them those of `lows` and `highs` that lie beyond them.

        Rare large numbers make most of the error of a codebook that does not know them, and a sample misses them.
        """
        count = values.numel()
        drawn = np.sort(values.numpy() if count <= SAMPLE else values.numpy()[_places(count)])
        below, above = np.sort(lows[lows < drawn[0]]), np.sort(highs[highs > drawn[-1]])
        numbers = np.concatenate([below, drawn, above]).astype(np.float64)
        each = (count - len(below) - len(above)) / len(drawn)
        counts = np.arange(len(numbers) + 1.0)
        counts[len(below) :] += (each - 1) * np.minimum(np.arange(len(counts) - len(below)), len(drawn))
        weights = np.diff(counts)
        centre = float((numbers * weights).sum()) / count
        numbers -= centre
        weighted = np.zeros(len(counts))
        np.multiply(numbers, weights, out=weighted[1:])
        return cls(numbers, centre, counts, weighted.cumsum(), float((weighted[1:] * numbers).sum()))

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


def _extremes(values: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The smallest and the largest number of each column; what is left over belongs to both, and few numbers wholly so.

    Numbers of a column lie far apart, so that of large ones that lie together hardly any is hidden behind another.
    """
    rows = values.numel() // _COLUMNS if values.numel() > SAMPLE else 0
    table, rest = values[: rows * _COLUMNS].view(rows, _COLUMNS), values[rows * _COLUMNS :].numpy()
    if rows == 0:
        return rest, rest
    return np.concatenate([table.amin(0).numpy(), rest]), np.concatenate([table.amax(0).numpy(), rest])


def _places(count: int) -> NDArray[np.int64]:
    """SAMPLE of `count` places: one of each of as many equal parts, at random in it, so that no stride of a tensor shows."""
    return ((np.arange(SAMPLE) + _jitter()) * (count / SAMPLE)).astype(np.int64)


@functools.cache
def _jitter() -> Floats:
    """Random numbers of 0 to 1, always the same ones."""
    return np.random.default_rng(0).random(SAMPLE)


def _best_grid(sample: _Sample, bits: int) -> Floats:
    """The equal steps of least error, between the smallest and the largest number or within them."""
    last = len(sample.values) - 1
    trimmed = (np.array(_TRIMMED) * last).astype(int)
    low, high = (ends.ravel() for ends in np.meshgrid(sample.values[trimmed], sample.values[last - trimmed]))
    steps = (high - low) / (2**bits - 1)
    parameters = np.stack([(low + high) / 2, *(steps * 2.0 ** (bit - 1) for bit in range(bits))], axis=1)
    levels = low[:, None] + steps[:, None] * np.arange(2**bits)
    best = sample.error(levels, *sample.cells(levels)).argmin()
    chosen: Floats = parameters[best]
    return chosen


def _residues(sample: _Sample, bits: int) -> Floats:
    """Each coefficient the mean size of what those before have left (paper 001, III-C), about the mean."""
    weights, left, found = np.diff(sample.counts), sample.values, [0.0]
    for _ in range(bits):
        size = np.abs(left)
        found.append(float((size * weights).sum()) / sample.counts[-1])
        left = size - found[-1]
    return np.array(found)


def _sums_themselves(sample: _Sample, bits: int) -> Iterator[Floats]:
    """The offset and coefficients whose sums the numbers are, as those that were decoded before, where they may be."""
    numbers = sample.values[np.flatnonzero(np.diff(sample.values, prepend=-np.inf))]
    if len(numbers) != 2**bits:
        return
    known, coefficients = numbers[:1], []
    for _ in range(bits):
        # The smallest number that is not among the sums of what is known needs a coefficient that is not.
        is_other = np.abs(numbers[: len(known)] - known) > 1e-5 * (numbers[-1] - numbers[0])
        step = numbers[is_other.argmax() if is_other.any() else len(known)] - numbers[0]
        coefficients.append(step / 2)
        known = np.sort(np.concatenate([known, known + step]))
    yield np.array([numbers[0] + sum(coefficients), *coefficients])


def _descend(sample: _Sample, parameters: Floats) -> tuple[float, Floats]:
    """The error of the best parameters on the way down from these, and they.

    Alternates between cells and least squares. The paper's step takes the cells as they are, and a hundred may be needed.
    Here the cells' borders follow in a step, as if the numbers at a border were as dense as in the sparser cell beside it.
    Where that leads up, as it may with numbers that repeat, cells are taken as they are.
    """
    table, ridge = signs(len(parameters) - 1), 1e-9 * sample.counts[-1]
    best_error, best, borders_follow = np.inf, parameters, 1.0
    for _ in range(_STEPS):
        levels = table @ parameters
        order = levels.argsort()
        levels, rows = levels[order], table[order]
        counts, sums = sample.cells(levels)
        error = float(sample.error(levels, counts, sums))
        has_risen, is_enough = error > best_error, best_error - error <= _ENOUGH * error
        if not has_risen:
            best_error, best = error, parameters
        elif borders_follow:
            borders_follow, parameters = 0.0, best
            continue
        if is_enough:
            break
        border, both = borders_follow * np.minimum(counts[1:], counts[:-1]) / 4, rows[1:] + rows[:-1]
        curvature = (rows.T * counts) @ rows - (both.T * border) @ both
        curvature.flat[:: len(parameters) + 1] += ridge
        parameters = parameters + np.linalg.solve(curvature, rows.T @ (sums - counts * levels))
    return best_error, best
