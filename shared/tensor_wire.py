"""Encoded tensors as the wire announces them, and announcements as a codec needs them.

The one place that knows both torch's element types and the protos'.
"""

from collections.abc import Iterable
from functools import lru_cache

import torch

from shared.bounds import MAX_DIMENSIONS
from shared.codec import Codec, Encoded, check_layout, codec_by_name, most_span_bytes
from shared.errors import DataError, ProtocolError
from shared.model.spec import TensorSpec
from shared.transport.stream.framing import TensorKey, WireTensor, key_of
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, TensorHeader

_DTYPES = {
    torch.float32: DataType.DATA_TYPE_FLOAT32,
    torch.float16: DataType.DATA_TYPE_FLOAT16,
    torch.bfloat16: DataType.DATA_TYPE_BFLOAT16,
    torch.float64: DataType.DATA_TYPE_FLOAT64,
    torch.int64: DataType.DATA_TYPE_INT64,
    torch.int32: DataType.DATA_TYPE_INT32,
    torch.uint8: DataType.DATA_TYPE_UINT8,
    torch.bool: DataType.DATA_TYPE_BOOL,
    torch.int16: DataType.DATA_TYPE_INT16,
    torch.int8: DataType.DATA_TYPE_INT8,
}
_TORCH_DTYPES = {wire: dtype for dtype, wire in _DTYPES.items()}


ABSENT = TensorHeader(is_absent=True)
"""Header that announces that there is no error gradient."""


def kinds_of(specs: Iterable[TensorSpec]) -> list[TensorHeader]:
    """Announce the shapes and types of tensors, no more."""
    return [TensorHeader(shape=spec.shape, dtype=wire_dtype(spec.dtype)) for spec in specs]


def to_wire(
    encoded: Encoded | None,
    key: TensorKey,
    placement_version: int,
    batch_samples: int = 0,
    rate_drops: int = 0,
    label_count: float = 0.0,
) -> WireTensor:
    """An encoded tensor, ready to be cut into chunks, and nothing copied; None says that there is none."""
    told = batch_samples, rate_drops, label_count
    if encoded is None:
        return WireTensor(key, placement_version, ABSENT, memoryview(b""), 0, *told)
    header = _header(encoded.codec, encoded.dtype, encoded.shape, encoded.strides, len(encoded.payload))
    return WireTensor(key, placement_version, header, encoded.payload, 0, *told)


@lru_cache(256)
def _header(
    codec: str, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], encoded_bytes: int
) -> TensorHeader:
    """An announcement, made once for all tensors that look the same; nobody writes to it."""
    return TensorHeader(codec=codec, dtype=wire_dtype(dtype), shape=shape, strides=strides, encoded_bytes=encoded_bytes)


def from_wire(tensor: WireTensor) -> Encoded | None:
    """Return the encoded tensor that arrived, None where there is none. `check_announcement` has passed its announcement."""
    header = tensor.header
    if header.is_absent:
        return None
    return Encoded(header.codec, torch_dtype(header.dtype), tuple(header.shape), tuple(header.strides), tensor.payload)


def slot_codec(name: str, dtype: torch.dtype) -> Codec:
    """The codec of one tensor of a feature: that of the deployment for floats, raw for integers, which stand for something."""
    return codec_by_name(name if dtype.is_floating_point else "raw")


def check_encoding(frame: Frame, codec: Codec, max_bytes: int) -> None:
    """Refuse, before memory is taken, a tensor that is not what `codec` makes of its shape or exceeds `max_bytes`.

    Both the encoded and the decoded size are bounded. Raises ProtocolError.
    """
    header, what = frame.tensor, key_of(frame)
    if header.codec != codec.name:
        raise ProtocolError(f"{what}: encoded as {header.codec[:40]!r}; {codec.name!r} is agreed")
    dtype = torch_dtype(header.dtype)
    shape, strides = tuple(header.shape), tuple(header.strides)
    check_layout(shape, strides, max_bytes // dtype.itemsize * dtype.itemsize, dtype.itemsize)
    expected = codec.encoded_bytes(transmitted_shape(shape, strides), dtype)
    if header.encoded_bytes != expected and not (codec.spec.varies and header.encoded_bytes < expected):
        raise ProtocolError(f"{what}: announces {header.encoded_bytes} bytes; {codec.name} of {shape} has {expected}")
    if expected > max_bytes:
        raise ProtocolError(f"{what}: {codec.name} of {shape} takes {expected} bytes; at most {max_bytes} are allowed")


def most_bytes(tensor: TensorSpec, codec: Codec) -> int:
    """Return the largest encoded size of a known tensor. With a handful of samples, a codec's ranges may exceed the
    tensor itself."""
    return max(most_span_bytes(tensor.bytes), codec.encoded_bytes(tensor.shape, tensor.dtype))


def transmitted_shape(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that are really sent: a dimension of stride 0 repeats one element, which goes once."""
    return tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(shape, strides, strict=True))


def can_be_sent(tensor: TensorSpec) -> bool:
    """Tell whether the contract has a tensor's element type, and room for its dimensions."""
    return tensor.dtype in _DTYPES and len(tensor.shape) <= MAX_DIMENSIONS


def wire_dtype(dtype: torch.dtype) -> DataType.ValueType:
    """The proto's name of an element type. Raises DataError for one that the contract has not."""
    if dtype not in _DTYPES:
        raise DataError(f"tensors of {dtype} cannot be sent; {', '.join(map(str, _DTYPES))} can")
    return _DTYPES[dtype]


def torch_dtype(dtype: DataType.ValueType) -> torch.dtype:
    """torch's element type. Raises ProtocolError for a number that the contract has not."""
    if dtype not in _TORCH_DTYPES:
        raise ProtocolError(f"element type {dtype} is not in the contract")
    return _TORCH_DTYPES[dtype]
