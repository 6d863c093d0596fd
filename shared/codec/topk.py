"""The largest elements alone, the others as zeros: for gradients of weights, whose residual brings the others later.

Of n elements, the k = ceil(n * bits / 64) of the largest magnitude are sent: their places in the run, rising, as uint32, and
their values as float32, all little-endian. The run is the tensor in the order of its own memory. A NaN is the largest there is.
"""

import math

import torch
from torch import Tensor

from shared.codec.base import Codec, Encoded
from shared.codec.buffers import memory_of, tensor_over
from shared.codec.layout import distinct_count, from_run, to_run
from shared.codec.payload import as_float32, check_bytes, check_claim, check_is_float
from shared.errors import ProtocolError
from shared.registry import CodecSpec

_ELEMENT_BITS = 64
"""Bits of one element that is sent: a place and a value."""
SAMPLE = 1 << 14
"""Elements that a look at a large tensor begins with."""


class TopK(Codec):
    """One of 64 elements is sent for each bit that the codec has."""

    QUICK_BYTES = 256 * 1024  # the largest are looked for first

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._bits = spec.bits

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`; any floating-point dtype. The payload is memory of its own."""
        check_is_float(self.name, tensor)
        run, strides = to_run(tensor)
        values = as_float32(run)
        places = _largest(values.abs(), self._kept(len(values)))
        payload = torch.cat((places.to(torch.int32).view(torch.uint8), values[places].view(torch.uint8)))
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, memory_of(payload))

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`."""
        check_claim(encoded)
        count = distinct_count(encoded.shape, encoded.strides)
        kept = self._kept(count)
        check_bytes(encoded, kept * _ELEMENT_BITS // 8)
        payload = tensor_over(encoded.payload)
        places = payload[: 4 * kept].view(torch.uint32).to(torch.int64)
        if kept and (places[-1] >= count or (places.diff() <= 0).any()):
            raise ProtocolError(f"payload of codec {self.name}: its places must rise and be less than {count}")
        run = torch.zeros(count, dtype=torch.float32)
        run[places] = payload[4 * kept :].view(torch.float32)
        return from_run(run.to(encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002 - the same for every dtype
        """See `Codec.encoded_bytes`."""
        return self._kept(math.prod(shape)) * _ELEMENT_BITS // 8

    def _kept(self, count: int) -> int:
        return -(-count * self._bits // _ELEMENT_BITS)


def _largest(magnitudes: Tensor, kept: int) -> Tensor:
    """Return the places of the largest magnitudes, rising."""
    likely = _likely_largest(magnitudes, kept) if len(magnitudes) > 4 * SAMPLE else None
    if likely is None or len(likely) < kept:
        return magnitudes.topk(kept, sorted=False).indices.sort().values
    return likely[magnitudes[likely].topk(kept, sorted=False).indices].sort().values


def _likely_largest(magnitudes: Tensor, kept: int) -> Tensor:
    """Return the places of what is at least as large as a sample lets expect, and of every NaN: few elements."""
    sample = magnitudes[:: len(magnitudes) // SAMPLE]
    expected = -(-kept * len(sample) // len(magnitudes))
    least = sample.topk(min(len(sample), expected + expected // 4 + 8), sorted=True).values[-1]
    return (magnitudes < least).logical_not_().nonzero().view(-1)
