"""Putting a module back as it was after it has been run or traced. Knows nothing of why that was done."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def same_attributes(module: nn.Module) -> Iterator[None]:
    """Afterwards every submodule has the attributes, modes, parameters and buffers that it has now, the same objects."""
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (entries, dict(entries))
        for part in module.modules()
        for entries in (vars(part), part._parameters, part._buffers, part._modules)
    ]
    try:
        yield
    finally:
        for entries, before in saved:
            for name in entries.keys() - before.keys():
                del entries[name]
            entries.update(before)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """As `same_attributes`, and the buffers have the values that they have now."""
    buffers = BufferValues(module)
    with same_attributes(module):
        try:
            yield
        finally:
            buffers.restore()


class BufferValues:
    """The buffers of a module as they are now, to compare with and to go back to."""

    def __init__(self, module: nn.Module) -> None:
        self._saved = [
            (owner._buffers, name, buffer, buffer.clone())
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def copies(self) -> list[Tensor]:
        """The values of the same buffers at this moment; an empty tensor for one that is gone."""
        now = [owner.get(name) for owner, name, _, _ in self._saved]
        return [torch.empty(0) if buffer is None else buffer.clone() for buffer in now]

    def restore(self) -> None:
        """Put every buffer back: the same object, with the same values."""
        with torch.no_grad():
            for owner, name, buffer, values in self._saved:
                owner[name] = buffer
                if buffer.shape != values.shape:  # one that a forward has resized
                    buffer.data = values.clone()
                elif not same_bits(buffer, values):
                    buffer.copy_(values)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same shape, type and bytes: NaN equals NaN, and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one_bytes, other_bytes = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(one_bytes, other_bytes)
