"""Checks that codecs of floating-point tensors share: of the tensor to encode, and of the payload that a peer sends.

Every check of a payload is made before memory is taken for what it decodes to. Levels come behind a head of 8 bytes: version,
bits, flags and number of groups, little-endian.
"""

import struct
from collections.abc import Collection

import torch
from torch import Tensor

from shared.codec.base import Encoded
from shared.codec.layout import MAX_TENSOR_BYTES, check_layout
from shared.errors import ConfigError, ProtocolError

HEAD = struct.Struct("<BBHI")
VERSION = 1
NO_FLAGS = 0


def check_is_float(codec: str, tensor: Tensor) -> None:
    """Refuse a tensor of another kind. Raises ConfigError."""
    if not tensor.dtype.is_floating_point:
        raise ConfigError(f"codec {codec} carries floating-point tensors, not {tensor.dtype}; use raw")


def check_claim(encoded: Encoded) -> None:
    """Refuse a dtype that is not floating-point, and a layout that cannot be. Raises ProtocolError."""
    if not encoded.dtype.is_floating_point:
        raise ProtocolError(
            f"payload of codec {encoded.codec}: is said to be of {encoded.dtype}; it carries floating-point tensors"
        )
    check_layout(encoded.shape, encoded.strides, MAX_TENSOR_BYTES, encoded.dtype.itemsize)


def check_bytes(encoded: Encoded, expected: int) -> None:
    """Refuse a payload of another size. Raises ProtocolError."""
    if encoded.payload.nbytes != expected:
        raise ProtocolError(
            f"payload of codec {encoded.codec}: has {encoded.payload.nbytes} bytes; shape {encoded.shape} takes {expected}"
        )


def read_flags(encoded: Encoded, bits: int, groups: int, known: Collection[int] = (NO_FLAGS,)) -> int:
    """The flags in the head of a payload of levels. Raises ProtocolError for a head that is never sent."""
    head = HEAD.unpack_from(encoded.payload)
    version, has_bits, flags, has_groups = head
    if (version, has_bits, has_groups) != (VERSION, bits, groups) or flags not in known:
        allowed = " or ".join(map(str, known))
        raise ProtocolError(
            f"payload of codec {encoded.codec}: begins with {head}; (version, bits, flags, groups) must be "
            f"({VERSION}, {bits}, {allowed}, {groups})"
        )
    return int(flags)


def as_float32(run: Tensor) -> Tensor:
    """float32 of any floating-point values; finite ones stay finite."""
    values = run.to(torch.float32)
    if run.dtype is not torch.float64:
        return values
    largest = torch.finfo(torch.float32).max
    return torch.where(run.isinf(), values, values.clamp_(-largest, largest))
