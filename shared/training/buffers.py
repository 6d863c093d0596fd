"""Buffers, as batch-norm's statistics, around forwards that may not change them or whose graphs still hold them."""

from collections.abc import Iterable

from torch import Tensor, nn

from shared.model.chain import Block

Buffers = list[tuple[nn.Module, dict[str, Tensor | None]]]
"""The buffers of each module."""


def renew_buffers(*blocks: Block) -> Buffers:
    """Put copies in the place of the buffers of blocks, and return each module with those that it had.

    A graph in flight may hold the former ones, and a forward pass writes to the present ones.
    """
    before = [(module, dict(module._buffers)) for block in blocks for module in block.module.modules()]
    copies: dict[int, Tensor] = {}  # a buffer with two names stays one
    for module, buffers in before:
        for name, value in buffers.items():
            if value is not None:
                module._buffers[name] = copies.setdefault(id(value), value.detach().clone())
    return before


def put_buffers(buffers: Iterable[tuple[nn.Module, dict[str, Tensor | None]]]) -> None:
    """Have modules use these buffers."""
    for module, own in buffers:
        module._buffers.update(own)
