"""Layout of a tensor in memory: from any strides to one dense run of elements, and back to the same strides.

The run holds the elements in the order of the tensor's own memory: a dense tensor, whatever its order of dimensions, is
its own run and nothing is copied. Expanded dimensions (stride 0) are sent once; the gaps of a slice are not sent.
Knows shapes and strides only, nothing of codecs.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from shared.bounds import MAX_DIMENSIONS
from shared.errors import ConfigError, ProtocolError

MAX_TENSOR_BYTES = 4 << 30
"""Largest tensor that a codec decodes when its caller has set no lower limit with `check_layout`."""
_MAX_INT64 = 2**63 - 1
_SMALL_SPAN_BYTES = 64 * 1024
_KNOWN = 256
"""Layouts that are remembered: a run has a few, and asks about each several times a step."""


class _Layout(NamedTuple):
    """Properties that follow from a shape and strides."""

    order: tuple[int, ...]
    """The dimensions that move through memory, outermost first; those of size 1 or stride 0 do not move."""
    distinct: int
    """Elements that are sent: all, but those that an expanded dimension repeats."""
    span: int
    """Elements from the first to the last, gaps included."""
    overlaps: bool
    """True if elements lie on top of each other, other than by stride 0."""


@lru_cache(_KNOWN)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Layout:
    moving = (dim for dim, size in enumerate(shape) if size > 1 and strides[dim] > 0)
    order = tuple(sorted(moving, key=lambda dim: -strides[dim]))
    reach, overlaps = 0, False  # from the first to the last element of the dimensions inside
    for dim in reversed(order):
        overlaps = overlaps or strides[dim] <= reach
        reach += (shape[dim] - 1) * strides[dim]
    distinct = 0 if 0 in shape else math.prod(shape[dim] for dim in order)
    return _Layout(order, distinct, 1 + reach, overlaps)


@lru_cache(_KNOWN)
def check_layout(shape: tuple[int, ...], strides: tuple[int, ...], max_bytes: int, itemsize: int = 8) -> None:
    """Refuse a layout that a peer claims, before any memory is taken for it.

    max_bytes: most that the tensor may hold, expanded dimensions counted in full, and that it may span with its gaps.
    itemsize: bytes of an element; the widest there is, unless the dtype is known.
    ProtocolError when a number is negative or beyond 64 bits, when there are more than MAX_DIMENSIONS dimensions, when
    elements lie on top of each other (other than by stride 0), or when the tensor is larger than max_bytes.
    """
    claim = f"layout of shape {tuple(shape)[:MAX_DIMENSIONS]} and strides {tuple(strides)[:MAX_DIMENSIONS]}"
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise ProtocolError(
            f"{claim}: {len(shape)} sizes and {len(strides)} strides; there must be as many of each, {MAX_DIMENSIONS} at most"
        )
    if not all(0 <= number <= _MAX_INT64 for number in (*shape, *strides)):
        raise ProtocolError(f"{claim}: sizes and strides must be from 0 to 2^63 - 1")
    sizes = tuple(max(1, size) for size in shape)  # empty tensors take nothing, their sizes may
    layout = _layout(sizes, strides)
    if layout.overlaps:
        raise ProtocolError(f"{claim}: elements lie on top of each other; only stride 0 may repeat an element")
    largest = max(math.prod(sizes), layout.span) * itemsize
    if largest > max_bytes:
        raise ProtocolError(f"{claim}: takes {largest} bytes; at most {max_bytes} are allowed")


def most_span_bytes(tensor_bytes: int) -> int:
    """The most memory that a tensor may lie in, gaps included, whose elements take `tensor_bytes`.

    A sender makes dense what spans more, so a receiver can refuse it: gaps are not sent, but they take its memory.
    """
    return max(2 * tensor_bytes, _SMALL_SPAN_BYTES)


def distinct_count(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements that are sent: all, but those that an expanded dimension repeats."""
    return _layout(shape, strides).distinct


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def channel_groups(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Sizes (outer, channels, inner) of the run as three dimensions, the middle one being the tensor's dimension 1.

    Contiguous images give (B, C, H*W), channels-last ones (B*H*W, C, 1). Without a dimension 1 that moves through
    memory there is one channel. The tensor must not be empty.
    """
    order = _layout(shape, strides).order
    sizes = [shape[dim] for dim in order]
    if 1 not in order:
        return 1, 1, math.prod(sizes)
    at = order.index(1)
    return math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])


def to_run(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The distinct elements as a 1-D contiguous CPU tensor in memory order, and the strides to give back when decoding.

    A dense CPU tensor comes back as a view of itself. From a CUDA device the run arrives in page-locked memory. The
    strides are the tensor's own, unless elements lie on top of each other: then those of a contiguous copy. Where the gaps
    between elements are too large (`most_span_bytes`), they are those of the same order of dimensions without gaps.
    ConfigError when the tensor is sparse or quantised, or has more than MAX_DIMENSIONS dimensions.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dim() > MAX_DIMENSIONS:
        raise ConfigError(
            f"a {tensor.layout} tensor of {tensor.dtype} with {tensor.dim()} dimensions cannot be sent; "
            f"it must be a plain one of {MAX_DIMENSIONS} dimensions at most"
        )
    # Each operation of torch lets go of Python's interpreter and waits for it again, so those with nothing to do are left out.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        strides = tensor.stride()
        run = tensor if strides == (1,) else tensor.as_strided((tensor.numel(),), (1,))
    else:
        if _layout(tensor.shape, tensor.stride()).overlaps:
            tensor = tensor.contiguous()
        shape, strides = tensor.shape, tensor.stride()
        layout = _layout(shape, strides)
        sizes = [shape[dim] for dim in layout.order]
        run = tensor.as_strided(sizes, [strides[dim] for dim in layout.order]).contiguous().view(-1)
        if layout.span * tensor.itemsize > most_span_bytes(tensor.nbytes):
            strides = _without_gaps(shape, strides, layout.order)
    if run.device.type != "cpu":
        run = torch.empty(run.shape, dtype=run.dtype, pin_memory=run.is_cuda).copy_(run)
    return run, strides


def from_run(run: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """The tensor of `shape` and `strides` (checked before) whose distinct elements are `run`.

    A view of the run where the layout has no gaps; the gaps' content is undefined.
    """
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=run.dtype)
    layout = _layout(shape, strides)
    if layout.span == run.numel():
        return run.as_strided(shape, strides)
    spread = torch.empty(layout.span, dtype=run.dtype)
    sizes = [shape[dim] for dim in layout.order]
    spread.as_strided(sizes, [strides[dim] for dim in layout.order]).copy_(run.view(sizes))
    return spread.as_strided(shape, strides)


def _without_gaps(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of the same order of dimensions in a dense run; dimensions that do not move keep theirs."""
    dense, inner = list(strides), 1
    for dim in reversed(order):
        dense[dim], inner = inner, inner * shape[dim]
    return tuple(dense)
