"""Numbers to levels and back: paper 000, Eq. 2, with 2^n - 1 steps between a group's true minimum and maximum.

Works on float32 seen as (outer, channels, inner), one group a channel; knows nothing of bytes. Level q of a group
stands for low + q * (high - low) / (2^n - 1). What the equation leaves open is decided here:

- rounding is to the nearest level, half to even; with noise, up or down with the probabilities that make it unbiased;
- a constant group decodes to its constant;
- a group that holds a NaN decodes to NaN throughout, so that a divergence is not hidden;
- an infinity becomes the largest or smallest finite value of its group; a group without any finite value becomes NaN.

The time goes into passes over memory, so the work is done in tiles that stay in a core's cache, with as few passes as
plain tensor expressions allow. Adding 2^23 to a float in [0, 2^23) rounds it, half to even, and leaves the integer in
the low bits: adding and truncating is several times faster than rounding and converting.
"""

import math
import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.codec.buffers import scratch

Floats = NDArray[np.float32]

_TILE = 262144
"""Elements that a core works on at a time: a MiB, so that what one pass writes is still near when the next one reads."""
_READ_TILES = 4
"""Number of tiles that are read at a time where nothing is written: fewer calls, and still read once from slow memory."""
_MAGIC = torch.tensor(2.0**23)
_SHORT_ROW = 128
"""Rows of one channel below this many elements cost more to start than to run, so whole samples are taken as rows."""
_LONG_ROW = 1024
"""Samples of few elements are taken together until a row has about this many."""
_LEAST_RANGE, _LARGEST_VALUE = 2.0**-100, 2.0**125
"""Within these float32 neither overflows nor loses small numbers; beyond them the same is computed in float64."""
_random = threading.local()


def seed_stochastic_rounding(seed: int) -> None:
    """Let the calling thread's stochastic rounding follow from `seed`; otherwise it differs from run to run."""
    _generator().manual_seed(seed)


def quantize(values_OCI: Tensor, bits: int, out_OCI: Tensor, *, noise: bool) -> tuple[Floats, Floats]:
    """Write the level of each value into `out_OCI` and return the lowest and the highest value of each group.

    values_OCI: float32, contiguous, not empty. out_OCI: uint8, or int16 for 16 bits, whose bits are those of a uint16.
    noise: round up or down at random (the calling thread's generator, see `seed_stochastic_rounding`), so that the mean over
        draws is the value.
    """
    levels = 2**bits - 1
    low_C, high_C = _extremes(values_OCI)
    if not _is_plain(low_C, high_C):
        low_C, high_C = _finite_extremes(values_OCI, low_C)
        low, inverse = _in_float64(low_C, _inverse(low_C, high_C, levels))
        exact_OCI = (values_OCI.double() - low) * inverse
        if noise:
            _add_noise(exact_OCI, bits)
        out_OCI.copy_(exact_OCI.round_().clamp_(0, levels).nan_to_num_(0.0).int())  # NaN has no integer
    elif len(low_C) == 1 and not noise:
        _quantize_one_group(values_OCI.view(-1), low_C.item(), high_C.item(), levels, out_OCI.view(-1))
    else:
        from_zero = not low_C.any()
        inverse_C = _inverse(low_C, high_C, levels).astype(np.float32)
        for values, low, inverse, out in _tiles(values_OCI, low_C, inverse_C, out_OCI):
            work = scratch.take("tile", values.numel(), torch.float32).view(values.shape)
            if not from_zero:
                values = torch.sub(values, low, out=work)
            if noise:
                _add_noise(torch.mul(values, inverse, out=work), bits)
                work.clamp_(0, levels).add_(_MAGIC)
            elif values.shape[2] == 1:
                torch.addcmul(_MAGIC, values, inverse, out=work)
            else:
                torch.mul(values, inverse, out=work).add_(_MAGIC)
            out.copy_(work.view(torch.int32))
    return low_C, high_C


def dequantize(levels_OCI: Tensor, low_C: Floats, high_C: Floats, bits: int, out_OCI: Tensor) -> None:
    """Write the value of each level into `out_OCI` (float32, contiguous). levels_OCI: uint8, uint16 for 16 bits."""
    levels = 2**bits - 1
    if not _is_plain(low_C, high_C):
        low, high = _in_float64(low_C, high_C)
        out_OCI.copy_(levels_OCI.double() * ((high - low) / levels) + low)
    elif len(low_C) == 1:
        _dequantize_one_group(levels_OCI.view(-1), low_C.item(), high_C.item(), levels, out_OCI.view(-1))
    else:
        from_zero = not low_C.any()
        step_C = ((high_C.astype(np.float64) - low_C) / levels).astype(np.float32)
        for source, low, step, out in _tiles(levels_OCI, low_C, step_C, out_OCI):
            out.copy_(source).mul_(step)
            if not from_zero:
                out.add_(low)


def _quantize_one_group(values: Tensor, low: float, high: float, levels: int, out: Tensor) -> None:
    """`quantize` for one plain group, all of one dimension: a multiplication and an addition in one pass."""
    inverse = levels / (high - low) if high > low else 0.0
    tile = min(_tile_elements(), len(values))
    work = scratch.take("tile", tile, torch.float32)
    integers = work.view(torch.int32)
    for start in range(0, len(values), tile):
        part = values[start : start + tile]
        if len(part) < tile:
            work, integers = work[: len(part)], integers[: len(part)]
        if low != 0:
            part = torch.sub(part, low, out=work)
        torch.add(_MAGIC, part, alpha=inverse, out=work)
        out[start : start + tile].copy_(integers)


def _dequantize_one_group(source: Tensor, low: float, high: float, levels: int, out: Tensor) -> None:
    """`dequantize` for one plain group, all of one dimension."""
    step, low_0 = (high - low) / levels, torch.tensor(low)
    tile = _tile_elements()
    for start in range(0, len(source), tile):
        part = out[start : start + tile].copy_(source[start : start + tile])
        torch.add(low_0, part, alpha=step, out=part)


def _is_plain(low_C: Floats, high_C: Floats) -> bool:
    """Tell whether float32 computes every group without overflow, lost small numbers, infinity or NaN."""
    if not (low_C.min() > -_LARGEST_VALUE and high_C.max() < _LARGEST_VALUE):  # NaN is neither
        return False
    range_C = high_C - low_C
    return bool(((range_C > _LEAST_RANGE) | (range_C == 0)).all())


def _inverse(low_C: Floats, high_C: Floats, levels: int) -> NDArray[np.float64]:
    """Levels for a difference of one; 0 in a constant group, all of whose values are then at level 0."""
    range_C = high_C.astype(np.float64) - low_C
    return levels / np.where(range_C == 0, math.inf, range_C)


def _in_float64(*of_groups: NDArray[np.floating[Any]]) -> Iterator[Tensor]:
    return (torch.from_numpy(of_C).double()[:, None] for of_C in of_groups)


def _finite_extremes(values_OCI: Tensor, low_C: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest finite value of each channel; NaN for a channel with a NaN or with nothing finite.

    low_C: from _extremes.
    """
    finite_OCI = values_OCI.isfinite()
    lost_C = np.isnan(low_C) | ~finite_OCI.any(2).any(0).numpy()
    low_C, _ = _extremes(torch.where(finite_OCI, values_OCI, math.inf))
    _, high_C = _extremes(torch.where(finite_OCI, values_OCI, -math.inf))
    low_C[lost_C] = high_C[lost_C] = math.nan
    return low_C, high_C


def _extremes(values_OCI: Tensor) -> tuple[Floats, Floats]:
    """Smallest and largest value of each channel; NaN where there is one.

    Two passes over cached memory: faster than torch.aminmax, which is not vectorised as well.
    """
    outer, channels, inner = values_OCI.shape
    elements = _READ_TILES * _tile_elements()
    if channels == 1:
        values = values_OCI.view(-1)
        lows, highs = list[float](), list[float]()
        for start in range(0, inner, elements):
            tile = values[start : start + elements]
            lows.append(tile.amin().item())
            highs.append(tile.amax().item())
        return np.array(lows, np.float32).min(keepdims=True), np.array(highs, np.float32).max(keepdims=True)
    if together := _samples_together(outer, channels, inner):
        rows = values_OCI.view(outer // together, together * channels * inner)
        parts = torch.split(rows, max(1, elements // rows.shape[1]))
        low_C = torch.stack([part.amin(0) for part in parts]).amin(0).view(together, channels, inner).amin((0, 2))
        high_C = torch.stack([part.amax(0) for part in parts]).amax(0).view(together, channels, inner).amax((0, 2))
    else:
        parts = torch.split(values_OCI, max(1, elements // (channels * inner)))
        low_C = torch.cat([part.amin(2) for part in parts]).amin(0)
        high_C = torch.cat([part.amax(2) for part in parts]).amax(0)
    return low_C.numpy(), high_C.numpy()


def _tiles(
    source_OCI: Tensor, low_C: Floats, factor_C: Floats, out_OCI: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(source, low, factor, out) of one tile after the other: source and out contiguous, of three dimensions.

    low and factor are [channels of the tile, 1], so that they broadcast over the other two.
    """
    source, out = source_OCI.view(-1), out_OCI.view(-1)
    low, factor = torch.from_numpy(low_C)[:, None], torch.from_numpy(factor_C)[:, None]
    outer, channels, inner = source_OCI.shape
    elements = _tile_elements()
    if together := _samples_together(outer, channels, inner):
        low, factor = (of_C.expand(together, channels, inner).reshape(-1, 1) for of_C in (low, factor))
        outer, channels, inner = outer // together, together * channels * inner, 1
    inner_tile = min(inner, elements)
    channel_tile = min(channels, elements // inner_tile)
    outer_tile = max(1, elements // (channel_tile * inner_tile))
    for at_outer in range(0, outer, outer_tile):
        for at_channel in range(0, channels, channel_tile):
            which = slice(at_channel, at_channel + channel_tile)
            for at_inner in range(0, inner, inner_tile):
                start = (at_outer * channels + at_channel) * inner + at_inner
                sizes = (
                    min(outer_tile, outer - at_outer),
                    min(channel_tile, channels - at_channel),
                    min(inner_tile, inner - at_inner),
                )
                here = slice(start, start + math.prod(sizes))
                yield source[here].view(sizes), low[which], factor[which], out[here].view(sizes)


def _tile_elements() -> int:
    """Count the elements that all of torch's threads work on at a time: torch shares a tile out among them."""
    return _TILE * torch.get_num_threads()


def _samples_together(outer: int, channels: int, inner: int) -> int:
    """Count the samples that make one row of all channels, where a single channel's rows are short; 0 where they are not."""
    if channels == 1 or inner >= _SHORT_ROW:
        return 0
    wanted = max(1, _LONG_ROW // (channels * inner))
    return math.gcd(outer, 1 << (wanted.bit_length() - 1))


def _add_noise(levels: Tensor, bits: int) -> None:
    """Add random numbers, uniform in (-1/2, 1/2), so that rounding then goes up as often as the fraction says.

    They are odd multiples of a step that float32 still resolves at the highest level, so that a value on a level is not
    moved off it. Several come from one draw of the generator, which is by far the slowest part.
    """
    small, ones = (torch.int16, 0x0001_0001_0001_0001) if bits <= 8 else (torch.int8, 0x0101_0101_0101_0101)
    draws = scratch.take("draws", -(-levels.numel() * small.itemsize // 8), torch.int64)
    draws.random_(-(2**63), None, generator=_generator()).bitwise_or_(ones)
    noise = scratch.take("noise", levels.numel(), torch.float32).copy_(draws.view(small)[: levels.numel()])
    levels.add_(noise.view(levels.shape), alpha=2.0 ** (-8 * small.itemsize))


def _generator() -> torch.Generator:
    """This thread's own: torch's default one is seeded for a block's dropout while the codec's thread draws."""
    if not hasattr(_random, "generator"):
        _random.generator = torch.Generator()
        _random.generator.seed()
    return cast("torch.Generator", _random.generator)
