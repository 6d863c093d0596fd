"""The interface of a codec: a tensor in, bytes and a description out, and back; and the codec of each name, one object each.

Knows nothing of the wire: the sender of an `Encoded` writes its fields into a frame and its payload behind it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import ClassVar

import torch
from torch import Tensor

from shared.registry import CodecSpec, codec_spec


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor as bytes, and the data to build it again."""

    codec: str
    """Name by which `codec_by_name` finds the decoder."""
    dtype: torch.dtype
    """The type of the tensor before encoding, and again after decoding."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides of the original tensor, in elements: strides choose kernels, and kernels choose bits."""
    payload: memoryview
    """Contiguous bytes, format 'B'. May be the tensor's own memory, so neither is written to before it is sent."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the tensor before encoding."""
        return math.prod(self.shape) * self.dtype.itemsize


class Codec(ABC):
    """Turns tensors into bytes and back. Any number of threads may use one object at the same time."""

    QUICK_BYTES: ClassVar[int] = 1 << 20
    """A tensor of no more than this is encoded, or decoded, quicker than it is handed to another thread."""

    def __init__(self, spec: CodecSpec) -> None:
        self.spec = spec
        self.name = spec.name
        """In configurations and on the wire."""

    @abstractmethod
    def encode(self, tensor: Tensor) -> Encoded:
        """Bytes of `tensor`, of any strides and on any device. ConfigError when it is of a kind that is not carried."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """A CPU tensor of the dtype, shape and strides that `encoded` names.

        It may lie in the payload's own memory, which may be the encoded tensor's, so it must not be written to.

        ProtocolError when the payload and its description do not fit each other.
        """

    @abstractmethod
    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Payload bytes of a tensor of `shape` whose elements are all sent, heads and tables included.

        Exact: a receiver refuses a payload of any other size before it takes memory for it. A dimension of stride 0 is
        sent once, so the caller names its size as 1 to learn the bytes of such a tensor.
        """


@cache
def codec_by_name(name: str) -> Codec:
    """The codec of that name. ConfigError that says which names there are."""
    spec = codec_spec(name)
    codec: Codec = resolve_name(spec.implementation)(spec)
    return codec
