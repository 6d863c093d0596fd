"""Codecs that send the elements as they are or as a narrower float: raw, fp32, fp16, bf16.

A tensor of the codec's dtype is neither copied nor changed, in either direction, to the last bit. Narrowing
rounds to nearest; a finite value beyond the narrow range becomes the largest finite one there, so that one large
activation does not turn into an infinity; NaN and infinities stay.
"""

import math

import torch
from torch import Tensor

from shared.codec.base import Codec, Encoded
from shared.codec.buffers import memory_of, tensor_over
from shared.codec.layout import MAX_TENSOR_BYTES, check_layout, distinct_count, from_run, to_run
from shared.codec.payload import check_bytes, check_claim, check_is_float
from shared.errors import ProtocolError
from shared.registry import CodecSpec

_SENT_AS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def row_of_bytes(data: bytes | memoryview) -> Encoded:
    """A row of bytes as `Raw` encodes one, over the same memory."""
    return Encoded("raw", torch.uint8, (len(data),), (1,), memoryview(data))


class Raw(Codec):
    """Any dtype as it is: labels, parameters, features that must not lose a bit."""

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`; every dtype that has plain elements."""
        run, strides = to_run(tensor)
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, memory_of(run))

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`; lies in the payload's memory."""
        check_layout(encoded.shape, encoded.strides, MAX_TENSOR_BYTES, encoded.dtype.itemsize)
        return from_run(_read_run(encoded, encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """See `Codec.encoded_bytes`."""
        return math.prod(shape) * dtype.itemsize


class Cast(Codec):
    """Floating-point tensors as one floating-point dtype."""

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._sent_as = _SENT_AS[spec.name]

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`; any floating-point dtype."""
        check_is_float(self.name, tensor)
        run, strides = to_run(tensor)
        payload = memory_of(_narrow(run, self._sent_as))
        return Encoded(self.name, tensor.dtype, tuple(tensor.shape), strides, payload)

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`; lies in the payload's memory where the dtype is the one sent."""
        check_claim(encoded)
        run = _read_run(encoded, self._sent_as)
        return from_run(run.to(encoded.dtype), encoded.shape, encoded.strides)

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002 - the same for every dtype
        """See `Codec.encoded_bytes`."""
        return math.prod(shape) * self._sent_as.itemsize


def _read_run(encoded: Encoded, sent_as: torch.dtype) -> Tensor:
    """The elements in the payload. ProtocolError when their number, or a boolean's value, is wrong."""
    check_bytes(encoded, distinct_count(encoded.shape, encoded.strides) * sent_as.itemsize)
    elements = tensor_over(encoded.payload)
    if sent_as is torch.bool and bool((elements > 1).any()):
        raise ProtocolError(f"payload of codec {encoded.codec}: holds booleans other than 0 and 1")
    return elements.view(sent_as)


def _narrow(run: Tensor, dtype: torch.dtype) -> Tensor:
    """`run` as `dtype`, finite values kept finite."""
    largest = torch.finfo(dtype).max
    if torch.finfo(run.dtype).max <= largest or run.numel() == 0:
        return run.to(dtype)
    narrowed = run.to(dtype)
    if -largest <= run.amin().item() and run.amax().item() <= largest:
        return narrowed
    return torch.where(run.isfinite(), narrowed.clamp(-largest, largest), narrowed)
