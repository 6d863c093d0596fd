"""What a codec is: a tensor in, bytes and a description out, and back.

Holds the interface that every codec answers to. Knows nothing of the wire: whoever sends an `Encoded` writes its fields
into a frame and its payload behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor as bytes, with what is needed to build it again."""

    codec: str
    """Name by which `codec_by_name` finds the decoder."""
    dtype: torch.dtype
    """Of the tensor before encoding, and again after decoding."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of the original tensor, in elements: strides choose kernels, and kernels choose bits."""
    payload: memoryview
    """Contiguous bytes, format 'B'. May be the tensor's own memory, so neither is written to before it is sent."""


class Codec(Protocol):
    """Turns tensors into bytes and back. Stateless towards its callers: any number of threads may use one."""

    name: str
    """In configurations and on the wire."""

    def encode(self, tensor: Tensor) -> Encoded:
        """Bytes of `tensor`, of any strides and on any device. ConfigError when it is of a kind that is not carried."""

    def decode(self, encoded: Encoded) -> Tensor:
        """A CPU tensor of the dtype, shape and strides that `encoded` names.

        It may lie in the payload's own memory, which may be the memory of what was encoded, so nobody writes to it.

        ProtocolError when the payload and its description do not fit each other.
        """

    def encoded_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Payload bytes of a tensor of `shape`: exact, but for expanded (stride 0) tensors, of which less is sent."""
