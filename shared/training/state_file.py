"""Tensors as a safetensors file, and such a file as tensors over its own memory.

Both are written here, because the library copies all tensors two or three times on the way.
"""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy.ctypeslib  # noqa: F401 - loaded when first used; two threads that save at once recurse in it
import safetensors.torch
import torch
from torch import Tensor

from shared.codec.buffers import tensor_over
from shared.errors import ProtocolError

_ALIGNED_BYTES = 8
"""The count of bytes in the head of a file is so long, and the head and its padding a multiple of it."""
ENTRY_BYTES = 512
"""More than the name, shape and place of a tensor take in the head of a file."""
_METADATA = "__metadata__"
"""An entry of the head that is no tensor."""
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
)


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as a safetensors file."""
    entries: dict[str, dict[str, Any]] = {}
    parts: list[memoryview] = []
    end = 0
    for name, tensor in sorted(savable(tensors).items(), key=lambda item: -item[1].element_size()):
        begin, end = end, end + tensor.nbytes
        shape, dtype = list(tensor.shape), _dtype_name(tensor.dtype)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % _ALIGNED_BYTES)
    return b"".join((len(head).to_bytes(_ALIGNED_BYTES, "little"), head, *parts))


def savable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: on the CPU, contiguous, and no two in one memory, as tied weights are."""
    saved: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        placed = tensor.detach().cpu().contiguous()
        address = placed.untyped_storage().data_ptr()
        saved[name] = placed.clone() if address in taken else placed
        taken.add(address)
    return saved


def deserialize(data: bytes | memoryview, head_bytes: int) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, over its memory where that is writable and aligned.

    head_bytes: the most that its head may have. Raises ProtocolError for anything else than such a file, as the library does:
    each tensor has the bytes of its shape and type, and they lie one after another, to the end.
    """
    begin = _ALIGNED_BYTES + int.from_bytes(data[:_ALIGNED_BYTES], "little")
    if not _ALIGNED_BYTES <= begin <= len(data):
        raise _refusal(f"its head is said to end at byte {begin} of {len(data)}")
    if begin > _ALIGNED_BYTES + head_bytes:
        raise _refusal(f"its head has {begin - _ALIGNED_BYTES} bytes; it may have {head_bytes}")
    try:
        head = json.loads(bytes(data[_ALIGNED_BYTES:begin]))
    except (ValueError, RecursionError) as cause:
        raise _refusal(f"its head is no JSON: {str(cause)[:120]}") from cause
    if not isinstance(head, dict):
        raise _refusal("its head is no JSON object")
    head.pop(_METADATA, None)
    placed = sorted((_place(name, entry), name) for name, entry in head.items())
    expected = 0
    for (at, end), name in placed:
        if at != expected:
            raise _refusal(f"{name[:120]!r} begins at byte {at} of the tensors; it must begin at {expected}")
        expected = end
    if expected != len(data) - begin:
        raise _refusal(f"its tensors have {expected} bytes, and {len(data) - begin} are there")
    whole = tensor_over(memoryview(data))[begin:]
    return {name: _tensor(whole[at:end], head[name]) for (at, end), name in placed}


def _place(name: str, entry: Any) -> tuple[int, int]:
    """Return the first byte of a tensor and the one after its last. Raises ProtocolError."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if len(entry) == 3:
            numbers = (*shape, begin, end)
        case _:
            raise _refusal(f"{name[:120]!r} has no dtype, shape and data_offsets, or more")
    if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
        raise _refusal(f"{name[:120]!r} has a number that is no size")
    if dtype not in _dtypes():
        raise _refusal(f"{name[:120]!r} is of the type {dtype[:40]!r}, which no tensor here has")
    if (size := math.prod(shape) * _dtypes()[dtype].itemsize) != end - begin:
        raise _refusal(f"{name[:120]!r} has {size} bytes by its shape and type, and {end - begin} by its place")
    return begin, end


def _tensor(data: Tensor, entry: Mapping[str, Any]) -> Tensor:
    dtype = _dtypes()[entry["dtype"]]
    if data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(entry["shape"])


def _refusal(reason: str) -> ProtocolError:
    return ProtocolError(f"the state of a block is no safetensors file: {reason}")


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    """Return a type as safetensors calls it."""
    empty = safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    name: str = json.loads(empty[_ALIGNED_BYTES:])[""]["dtype"]
    return name


@functools.cache
def _dtypes() -> dict[str, torch.dtype]:
    """Return the types that a tensor may have, by their names."""
    return {_dtype_name(dtype): dtype for dtype in _DTYPES}
