"""Uniform n-bit codecs, n in 1..8 and 16 (paper 000, Eq. 2), per tensor or per channel, packed to the bit.

The payload is a head of 8 bytes (version, bits, flags, number of groups), the groups' lows and highs as float32, and
ceil(elements * n / 8) bytes of levels, all little-endian. `quantize` says what a level means and what constant,
infinite and NaN groups become; `bitpack` how levels share bytes. Levels are chosen in float32: of a float64 tensor,
what float32 cannot hold is lost, and what lies beyond its range is taken as its largest value.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.codec.base import Codec, Encoded
from shared.codec.bitpack import pack, packed_bytes, unpack
from shared.codec.buffers import memory_of, scratch, tensor_over
from shared.codec.layout import channel_groups, contiguous_strides, distinct_count, from_run, to_run
from shared.codec.payload import (
    HEAD,
    NO_FLAGS,
    VERSION,
    as_float32,
    check_bytes,
    check_claim,
    check_is_float,
    read_flags,
)
from shared.codec.quantize import dequantize, quantize
from shared.errors import ProtocolError
from shared.registry import CodecSpec


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
        check_is_float(self.name, tensor)
        run, strides = to_run(tensor)
        sizes = self._sizes(tensor.shape, strides)
        memory = torch.empty(self._payload_bytes(*sizes), dtype=torch.uint8)
        payload = memory_of(memory)
        HEAD.pack_into(payload, 0, VERSION, self._bits, NO_FLAGS, sizes[1])
        if run.numel():
            self._encode_run(as_float32(run).view(sizes), memory)
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, payload)

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`."""
        check_claim(encoded)
        sizes = self._sizes(encoded.shape, encoded.strides)
        check_bytes(encoded, self._payload_bytes(*sizes))
        read_flags(encoded, self._bits, groups=sizes[1])
        run = torch.empty(math.prod(sizes), dtype=torch.float32)
        if run.numel():
            self._decode_run(tensor_over(encoded.payload), run.view(sizes))
        return from_run(run.to(encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002 - the same for every dtype
        """See `Codec.encoded_bytes`."""
        return self._payload_bytes(*self._sizes(shape, contiguous_strides(shape)))

    def _sizes(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int]:
        """The run of elements as (outer, groups, inner)."""
        if 0 in shape:
            return 0, 0, 0
        return channel_groups(shape, strides) if self.spec.by_channel else (1, 1, distinct_count(shape, strides))

    def _payload_bytes(self, outer: int, groups: int, inner: int) -> int:
        return HEAD.size + 8 * groups + packed_bytes(outer * groups * inner, self._bits)

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
    packed_at = HEAD.size + 8 * groups
    ranges = memory.numpy()[HEAD.size : packed_at].view(np.float32).reshape(2, groups)
    return ranges, memory[packed_at:]
