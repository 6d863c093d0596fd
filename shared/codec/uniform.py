"""Uniform n-bit codecs, n in 1..8 and 16 (paper 000, Eq. 2), per tensor or per channel, packed to the bit.

The payload is a head of 8 bytes (version, bits, flags, number of groups), the groups' lows and highs as float32, and
ceil(elements * n / 8) bytes of levels, all little-endian. `quantize` says what a level means and what constant,
infinite and NaN groups become; `bitpack` how levels share bytes. Levels are chosen in float32: of a float64 tensor,
what float32 cannot hold is lost, and what lies beyond its range is taken as its largest value.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.codec.base import Codec, Encoded
from shared.codec.bitpack import pack, packed_bytes, unpack
from shared.codec.buffers import memory_of, tensor_over
from shared.codec.layout import (
    MAX_TENSOR_BYTES,
    channel_groups,
    check_layout,
    contiguous_strides,
    distinct_count,
    from_run,
    to_run,
)
from shared.codec.quantize import dequantize, quantize
from shared.codec.scratch import scratch
from shared.errors import ConfigError, ProtocolError
from shared.registry import CodecSpec

_HEAD = struct.Struct("<BBHI")
_VERSION = 1
_NO_FLAGS = 0


class Uniform(Codec):
    """Levels of n bits between the smallest and the largest value of each group.

    A group is the tensor, or by channel each index of dimension 1. A stochastic one rounds up or down at random, without
    bias, rather than to the nearest level; for gradients, whose small values rounding to nearest would lose (paper 001, Eq. 7).
    """

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._bits = spec.bits

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`. Any floating-point dtype; the payload is memory of its own."""
        if not tensor.dtype.is_floating_point:
            raise ConfigError(f"codec {self.name} carries floating-point tensors, not {tensor.dtype}; use raw")
        run, strides = to_run(tensor)
        sizes = self._sizes(tensor.shape, strides)
        memory = torch.empty(self._payload_bytes(*sizes), dtype=torch.uint8)
        payload = memory_of(memory)
        _HEAD.pack_into(payload, 0, _VERSION, self._bits, _NO_FLAGS, sizes[1])
        if run.numel():
            self._encode_run(_as_float32(run).view(sizes), memory)
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, payload)

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`."""
        where = f"payload of codec {self.name}"
        if not encoded.dtype.is_floating_point:
            raise ProtocolError(f"{where}: is said to be of {encoded.dtype}; it carries floating-point tensors")
        check_layout(encoded.shape, encoded.strides, MAX_TENSOR_BYTES, encoded.dtype.itemsize)
        sizes = self._sizes(encoded.shape, encoded.strides)
        if encoded.payload.nbytes != self._payload_bytes(*sizes):
            raise ProtocolError(
                f"{where}: has {encoded.payload.nbytes} bytes; "
                f"shape {encoded.shape} takes {self._payload_bytes(*sizes)}"
            )
        head = _HEAD.unpack_from(encoded.payload)
        if head != (_VERSION, self._bits, _NO_FLAGS, sizes[1]):
            raise ProtocolError(
                f"{where}: begins with {head}; (version, bits, flags, groups) must be "
                f"{(_VERSION, self._bits, _NO_FLAGS, sizes[1])}"
            )
        run = torch.empty(math.prod(sizes), dtype=torch.float32)
        if run.numel():
            self._decode_run(tensor_over(encoded.payload), run.view(sizes))
        return from_run(run.to(encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:  # noqa: ARG002 - the same for every dtype
        """See `Codec.encoded_bytes`."""
        return self._payload_bytes(*self._sizes(shape, contiguous_strides(shape)))

    def _sizes(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int]:
        """The run of elements as (outer, groups, inner)."""
        if 0 in shape:
            return 0, 0, 0
        return channel_groups(shape, strides) if self.spec.by_channel else (1, 1, distinct_count(shape, strides))

    def _payload_bytes(self, outer: int, groups: int, inner: int) -> int:
        return _HEAD.size + 8 * groups + packed_bytes(outer * groups * inner, self._bits)

    def _encode_run(self, values_OCI: Tensor, memory: Tensor) -> None:
        """Write everything that follows the head."""
        ranges, packed = _split(memory, values_OCI.shape[1])
        if self._bits == 8:
            levels = packed
        elif self._bits == 16:
            levels = packed.view(torch.int16)
        else:
            levels = scratch.take("levels", values_OCI.numel(), torch.uint8)
        ranges[:] = quantize(values_OCI, self._bits, levels.view(values_OCI.shape), noise=self.spec.stochastic)
        if self._bits < 8:
            pack(levels, self._bits, out=packed)

    def _decode_run(self, memory: Tensor, out_OCI: Tensor) -> None:
        """Read everything that follows the head. ProtocolError when a group's range is not one that is ever sent."""
        (low_C, high_C), packed = _split(memory, out_OCI.shape[1])
        finite = np.isfinite(low_C) & np.isfinite(high_C)
        if not ((finite & (low_C <= high_C)) | (np.isnan(low_C) & np.isnan(high_C))).all():
            raise ProtocolError(
                f"payload of codec {self.name}: a group's range is infinite or reversed; it must be low <= high"
            )
        if self._bits == 8:
            levels = packed
        elif self._bits == 16:
            levels = packed.view(torch.uint16)
        else:
            levels = scratch.take("levels", out_OCI.numel(), torch.uint8)
            unpack(packed, self._bits, out=levels)
        dequantize(levels.view(out_OCI.shape), low_C, high_C, self._bits, out_OCI)


def _split(memory: Tensor, groups: int) -> tuple[NDArray[np.float32], Tensor]:
    """The groups' lows and highs, float32 [2, groups], and the packed levels, uint8: both over the payload's memory."""
    packed_at = _HEAD.size + 8 * groups
    ranges = memory.numpy()[_HEAD.size : packed_at].view(np.float32).reshape(2, groups)
    return ranges, memory[packed_at:]


def _as_float32(run: Tensor) -> Tensor:
    """float32 of any floating-point values; finite ones stay finite."""
    values = run.to(torch.float32)
    if run.dtype is not torch.float64:
        return values
    largest = torch.finfo(torch.float32).max
    return torch.where(run.isinf(), values, values.clamp_(-largest, largest))
