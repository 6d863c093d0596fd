"""Codebooks of sums of signs: an offset, plus or minus each of k coefficients, fitted to the numbers of one tensor.

A fit minimises the squared error of rounding each number to the nearest of the 2^k sums. It goes over numbers in order, where a
codebook's cells are ranges: between two edges lie a count and a sum, and no step looks at single numbers. Knows no bytes.
"""

import functools
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from shared.codec.numbers import Floats, Floats32, Numbers, SampledNumbers

_COARSE = 1e-3
"""An error of this part of the variance or less may be that of the bins, which is about 5e-6 of the variance."""
_STEPS = 24
"""Most steps of a fit; ten do nearly always."""
_ENOUGH = 1e-4
"""A fit ends where a step saves less than this part of the error."""
_TRIMMED = (0.0, 1e-4, 1e-3, 5e-3, 2e-2, 6e-2)
"""Parts of the numbers that a start leaves beyond its range, below and above."""
_ROUNDED = 4 * float(np.finfo(np.float32).eps)
"""By this part of a number sums of its kind differ because each was rounded to float32."""
_LARGEST = float(np.finfo(np.float32).max)


@functools.cache
def signs(bits: int) -> Floats:
    """Return the coefficient of each parameter in each of the 2^bits sums, [2^bits, 1 + bits]: 1 for the offset, else 1
    or -1."""
    which = np.arange(2**bits)[:, None] >> np.arange(bits)
    return np.concatenate([np.ones((2**bits, 1)), (which & 1) * 2.0 - 1.0], axis=1)


def levels_of(parameters: Floats32) -> Floats32:
    """The 2^k sums, rising, of an offset and k coefficients; what lies beyond float32 is taken as its largest value."""
    sums = signs(len(parameters) - 1) @ parameters.astype(np.float64)
    return np.sort(np.clip(sums, -_LARGEST, _LARGEST).astype(np.float32))


def fit(values: Tensor, bits: int) -> Floats32 | None:
    """The offset and the coefficients, rising, of the best codebook that is found; None where there is a NaN or nothing finite.

    values: 1-D float32, not empty. An infinity counts as the largest or smallest finite value.
    """
    sample = SampledNumbers.of(values) or SampledNumbers.of(_without_infinities(values))
    if sample is None:
        return None
    numbers = sample.in_bins() if sample.is_large else sample.in_order()
    error, parameters = _best(numbers, bits)
    if sample.is_large and error <= _COARSE * numbers.squares:
        numbers = sample.in_order()
        error, parameters = _best(numbers, bits)
    parameters[0] += numbers.centre
    parameters[1:] = np.sort(np.abs(parameters[1:]))
    return np.clip(parameters, -_LARGEST, _LARGEST).astype(np.float32)


def _without_infinities(values: Tensor) -> Tensor:
    """Each the largest or smallest finite value; a NaN stays one, and so do infinities where nothing else is."""
    finite = values[values.isfinite()]
    return values.clamp(finite.amin(), finite.amax()) if finite.numel() else values


def _best(numbers: Numbers, bits: int) -> tuple[float, Floats]:
    """The least error that is reached from several starts, and its parameters."""
    starts = [_best_grid(numbers, bits), _residues(numbers, bits), *_sums_themselves(numbers, bits)]
    return min((_descend(numbers, start) for start in starts), key=lambda found: found[0])


def _best_grid(numbers: Numbers, bits: int) -> Floats:
    """The equal steps of least error, between the smallest and the largest number or within them."""
    trimmed = np.array(_TRIMMED) * numbers.counts[-1]
    lowest = np.searchsorted(numbers.counts, trimmed, side="right") - 1
    highest = np.searchsorted(numbers.counts, numbers.counts[-1] - trimmed) - 1
    low, high = (ends.ravel() for ends in np.meshgrid(numbers.values[lowest], numbers.values[highest]))
    steps = (high - low) / (2**bits - 1)
    parameters = np.stack([(low + high) / 2, *(steps * 2.0 ** (bit - 1) for bit in range(bits))], axis=1)
    levels = low[:, None] + steps[:, None] * np.arange(2**bits)
    best = numbers.error(levels, *numbers.cells(levels)).argmin()
    chosen: Floats = parameters[best]
    return chosen


def _residues(numbers: Numbers, bits: int) -> Floats:
    """Each coefficient the mean size of what those before have left (paper 001, III-C), about the mean."""
    weights, left, found = np.diff(numbers.counts), numbers.values, [0.0]
    for _ in range(bits):
        size = np.abs(left)
        found.append(float((size * weights).sum()) / numbers.counts[-1])
        left = size - found[-1]
    return np.array(found)


def _sums_themselves(numbers: Numbers, bits: int) -> Iterator[Floats]:
    """The offset and coefficients whose sums the numbers are, as those that were decoded before, where they may be."""
    distinct = numbers.values[np.flatnonzero(np.diff(numbers.values, prepend=-np.inf))]
    if len(distinct) != 2**bits:
        return
    known, coefficients = distinct[:1], []
    rounded = _ROUNDED * np.abs(distinct[[0, -1]] + numbers.centre).max()
    for _ in range(bits):
        # The smallest number that is not among the sums of what is known needs a coefficient that is not.
        is_other = np.abs(distinct[: len(known)] - known) > 1e-5 * (distinct[-1] - distinct[0]) + rounded
        step = distinct[is_other.argmax() if is_other.any() else len(known)] - distinct[0]
        coefficients.append(step / 2)
        known = np.sort(np.concatenate([known, known + step]))
    yield np.array([distinct[0] + sum(coefficients), *coefficients])


def _descend(numbers: Numbers, parameters: Floats) -> tuple[float, Floats]:
    """The error of the best parameters on the way down from these, and they.

    Alternates between cells and least squares. The paper's step takes the cells as they are, and a hundred may be needed.
    Here the cells' borders follow in a step, as if the numbers at a border were as dense as in the sparser cell beside it.
    Where that leads up, as it may with numbers that repeat, cells are taken as they are.
    """
    table, ridge = signs(len(parameters) - 1), 1e-9 * numbers.counts[-1]
    best_error, best, borders_follow = np.inf, parameters, 1.0
    for _ in range(_STEPS):
        levels = table @ parameters
        order = levels.argsort()
        levels, rows = levels[order], table[order]
        counts, sums = numbers.cells(levels)
        error = float(numbers.error(levels, counts, sums))
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
