"""Error feedback: the edge corrects an error gradient that was taken at the compressed feature.

Pure functions over tensors. The caller keeps the error of each batch.
"""

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor


class FeedbackMode(StrEnum):
    """The scale of the second-order term."""

    BATCH = "batch"
    """Times the batch size: right for a loss that is a mean over the batch, and the default."""
    LITERAL = "literal"
    """As the paper prints it, right for the loss of one sample; with a mean over a batch it all but vanishes."""
    OFF = "off"
    """None: the gradient as it came."""


MOST_EXACT_ELEMENTS = 1 << 17
"""Size up to which an error stays as it is: 8 bits would save little memory, and take time all the same."""
PART_ELEMENTS = 1 << 16
"""Size of what is computed at a time of a larger error, or a sample, if that is larger: it stays in a core's cache."""
_HIGHEST_LEVEL = 127
_LEAST_ERROR = 1e-30
"""The least that levels tell from none: its unit is still a number."""


class KeptError(NamedTuple):
    """E = C(h) - h of paper 000, Alg. 1, line 2.

    One is kept for each batch under way. A large one is kept in 8 bits, which is enough for a term of second order.
    """

    levels: Tensor
    """Tensor of the feature's shape: int8, or of a small one the error itself."""
    units: tuple[float, ...]
    """Worth of a level in each part of the samples. Of a large error it is NaN, or infinite, where the error is."""

    def over(self, scale: float) -> "KeptError":
        """Return the error without the scale of a loss."""
        return KeptError(self.levels, tuple(unit / scale for unit in self.units))

    def to(self, device: torch.device) -> "KeptError":
        """Return the error on a device."""
        return KeptError(self.levels.to(device), self.units)


def compression_error(decoded: Tensor, original: Tensor) -> KeptError:
    """Return the error of a codec, a large one to within 1/254 of its part's largest, in memory of its own.

    decoded: what the decoder makes of the encoded `original`. Where `original` is infinite the error is zero: a codec may
    send such an element as a finite one, and no gradient can be corrected by an infinite distance.
    """
    original, units = original.detach(), []
    if original.numel() <= MOST_EXACT_ELEMENTS:
        error = _wide(decoded) - original
        if not math.isfinite(error.sum().item()):
            error.masked_fill_(original.isinf(), 0.0)
        return KeptError(error, (1.0,))
    levels = torch.empty_like(decoded, dtype=torch.int8)
    for decoded_part, original_part, part in _parts(decoded, original, levels):
        error = _wide(decoded_part) - original_part
        if not math.isfinite(largest := _largest(error)):
            largest = _largest(error.masked_fill_(original_part.isinf(), 0.0))
        unit = 1.0 if largest < _LEAST_ERROR else largest / _HIGHEST_LEVEL
        part.copy_(error.mul_(1 / unit).round_())
        units.append(unit)
    return KeptError(levels, tuple(units))


def compensate(gradient: Tensor, error: KeptError, batch_size: int, mode: FeedbackMode = FeedbackMode.BATCH) -> Tensor:
    """Estimate of the error gradient at the feature before compression.

    gradient: error gradient of the mean loss at the compressed feature, any shape.
    error: compressed minus true feature, of the same shape and on the same device.
    batch_size: number of samples B over which the loss is a mean.
    Second-order Taylor term, with the diagonal of the Hessian estimated by the squared gradient (paper 000, Eq. 7 and
    8, Alg. 1, line 5). A mean over B samples makes a sample's gradient B times smaller, its square B^2 times and its
    Hessian B times, which the factor makes good. `gradient` is not written to; with mode OFF it is what comes back.
    """
    if mode is FeedbackMode.OFF:
        return gradient
    factor = batch_size if mode is FeedbackMode.BATCH else 1
    if len(error.units) == 1:
        return _corrected(gradient, error.levels, factor * error.units[0])
    compensated = torch.empty_like(gradient)
    for unit, (levels, before, part) in zip(error.units, _parts(error.levels, gradient, compensated), strict=True):
        part.copy_(_corrected(before, levels, factor * unit))
    return compensated


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one shape at the same places, between samples."""
    samples = max(1, len(tensors[0]) * PART_ELEMENTS // tensors[0].numel())
    yield from zip(*(torch.split(tensor, samples) for tensor in tensors), strict=True)


def _corrected(gradient: Tensor, levels: Tensor, factor: float) -> Tensor:
    wide = _wide(gradient)
    return torch.addcmul(wide, levels * wide, wide, value=-factor).to(gradient.dtype)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _largest(error: Tensor) -> float:
    """Return the largest distance from zero; NaN where there is such a number."""
    low, high = torch.aminmax(error)
    return max(high.item(), -low.item())
