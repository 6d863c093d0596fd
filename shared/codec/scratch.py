"""Working memory that a thread keeps from one tensor to the next.

Taking fresh memory for every feature costs as much as quantising it. Each thread has its own, so codecs need no lock.
"""

import threading

import torch
from torch import Tensor


class Scratch(threading.local):
    """Named pieces of working memory, each as large as the largest that was asked of it on this thread."""

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
