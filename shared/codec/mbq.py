"""Multi-bit quantisation (paper 001, III-C): each number as an offset plus or minus each of n coefficients.

The paper's codebook lies symmetrically about zero, and half of it is wasted on what comes out of a ReLU, so an offset is fitted
with the coefficients; it takes the place of the mean error that the paper sends. Nothing is kept from one tensor to the next.

The payload is a head of 8 bytes (`payload`), the offset and the n coefficients as float32, and ceil(elements * n / 8) bytes of
levels, all little-endian: level q is the q-th smallest of the 2^n sums. A tensor that holds a NaN, or nothing finite, decodes
to NaN throughout, which a flag says; an infinity becomes the largest or smallest level. An empty tensor is a head alone.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.codec.base import Codec, Encoded
from shared.codec.bitpack import pack, packed_bytes, unpack
from shared.codec.buffers import memory_of, scratch, tensor_over
from shared.codec.layout import distinct_count, from_run, to_run
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
from shared.codec.sums import fit, levels_of
from shared.errors import ProtocolError
from shared.registry import CodecSpec

_ALL_NAN = 1
_TILE = 65536
"""Elements that are compared at a time. With the numbers that they are compared with, they stay in a core's cache."""


class Mbq(Codec):
    """One codebook of 2^n levels for the tensor."""

    QUICK_BYTES = 16 * 1024  # it is fitted to the numbers first

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._bits = spec.bits
        self._levels_at = HEAD.size + 4 * (1 + spec.bits)

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`. Any floating-point dtype; the payload is memory of its own."""
        check_is_float(self.name, tensor)
        run, strides = to_run(tensor)
        memory = torch.empty(self._payload_bytes(run.numel()), dtype=torch.uint8)
        payload = memory_of(memory)
        flags = self._encode_run(as_float32(run), memory) if run.numel() else NO_FLAGS
        HEAD.pack_into(payload, 0, VERSION, self._bits, flags, _groups(run.numel()))
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, payload)

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`."""
        check_claim(encoded)
        count = distinct_count(encoded.shape, encoded.strides)
        check_bytes(encoded, self._payload_bytes(count))
        flags = read_flags(encoded, self._bits, _groups(count), (NO_FLAGS, _ALL_NAN))
        run = torch.empty(0)
        if count:
            memory = tensor_over(encoded.payload)
            levels = self._read_levels(memory)
            run = torch.empty(count)
            if flags == _ALL_NAN:
                run.fill_(math.nan)
            else:
                self._decode_run(memory, levels, run)
        return from_run(run.to(encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002 - the same for every dtype
        """See `Codec.encoded_bytes`."""
        return self._payload_bytes(math.prod(shape))

    def _payload_bytes(self, count: int) -> int:
        return self._levels_at + packed_bytes(count, self._bits) if count else HEAD.size

    def _encode_run(self, values: Tensor, memory: Tensor) -> int:
        """Write everything that follows the head, and return its flags."""
        parameters = fit(values, self._bits)
        if parameters is None:
            memory.zero_()
            return _ALL_NAN
        memory.numpy()[HEAD.size : self._levels_at].view(np.float32)[:] = parameters
        levels = levels_of(parameters)
        found = scratch.take("levels", values.numel(), torch.uint8)
        _nearest(values, levels, found)
        pack(found, self._bits, out=memory[self._levels_at :])
        return NO_FLAGS

    def _read_levels(self, memory: Tensor) -> Tensor:
        """Read the value of each level. ProtocolError when a coefficient is not one that is ever sent."""
        parameters = memory.numpy()[HEAD.size : self._levels_at].view(np.float32)
        if not np.isfinite(parameters).all():
            raise ProtocolError(
                f"payload of codec {self.name}: a coefficient or the offset is NaN or infinite; all must be finite"
            )
        return torch.from_numpy(levels_of(parameters))

    def _decode_run(self, memory: Tensor, levels: Tensor, out: Tensor) -> None:
        found = scratch.take("levels", out.numel(), torch.uint8)
        unpack(memory[self._levels_at :], self._bits, out=found)
        indices = scratch.take("indices", min(_TILE, out.numel()), torch.int32)
        for tile, target in zip(torch.split(found, _TILE), torch.split(out, _TILE), strict=True):
            torch.index_select(levels, 0, indices[: tile.numel()].copy_(tile), out=target)


def _groups(count: int) -> int:
    """Codebooks in a payload."""
    return 1 if count else 0


def _nearest(values: Tensor, levels: NDArray[np.float32], out: Tensor) -> None:
    """Write the index of the level nearest to each value, of 1-D float32, into `out` (uint8).

    That is the number of borders between levels that lie below it: comparing with each is faster here than any search.
    """
    wide = levels.astype(np.float64)
    first, *others = ((wide[1:] + wide[:-1]) / 2).astype(np.float32)
    is_above = scratch.take("above", min(_TILE, values.numel()), torch.bool).numpy()
    for tile, found in zip(torch.split(values, _TILE), torch.split(out, _TILE), strict=True):
        numbers, count, above = tile.numpy(), found.numpy(), is_above[: tile.numel()]
        np.greater(numbers, first, out=count.view(np.bool_))
        for border in others:
            np.greater(numbers, border, out=above)
            np.add(count, above.view(np.uint8), out=count)
