"""Bytes as tensors and tensors as bytes, over the same memory, and working memory that a thread keeps.

Knows nothing of codecs. Alignment is kept here because kernels may take another path, and give other bits, on memory
that is aligned otherwise than a tensor's own. Taking fresh memory for every feature costs as much as quantising it.
"""

import threading

import numpy as np
import torch
from torch import Tensor

ALIGNMENT_BYTES = 64
"""Alignment of the CPU memory that torch takes itself."""


def aligned_buffer(size_bytes: int) -> memoryview:
    """A writable, uninitialised buffer for receiving a payload, aligned so that it can be decoded in place."""
    return memory_of(torch.empty(size_bytes, dtype=torch.uint8))


def memory_of(run: Tensor) -> memoryview:
    """The memory of a contiguous 1-D CPU tensor of a dtype that can be sent, as bytes; the view keeps it alive."""
    known = run.view(torch.int16) if run.dtype is torch.bfloat16 else run  # numpy has no bfloat16
    return known.numpy().view(np.uint8).data


def tensor_over(payload: memoryview) -> Tensor:
    """`payload` as 1-D uint8 over the same memory, or over an aligned copy if it is read-only or not aligned."""
    if payload.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    if not payload.readonly:
        over = torch.frombuffer(payload, dtype=torch.uint8)
        if over.data_ptr() % ALIGNMENT_BYTES == 0:
            return over
    copy = aligned_buffer(payload.nbytes)
    copy[:] = payload
    return torch.frombuffer(copy, dtype=torch.uint8)


class Scratch(threading.local):
    """Named pieces of working memory, each as large as the largest that was asked of it on this thread, so that codecs need no
    lock."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, count: int, dtype: torch.dtype) -> Tensor:
        """`count` uninitialised elements, valid until the same purpose is taken again."""
        buffer = self._buffers.get((purpose, dtype))
        if buffer is None or buffer.numel() < count:
            with torch.inference_mode(False):  # an inference tensor could not be written to outside that mode
                buffer = torch.empty(count, dtype=dtype)
            self._buffers[purpose, dtype] = buffer
        return buffer[:count]


scratch = Scratch()
