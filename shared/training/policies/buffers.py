"""Buffers, as batch-norm's statistics, around forwards that may not change them or whose graphs still hold them."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from shared.training.stage import Stage


@contextmanager
def unchanged_buffers(stage: Stage) -> Iterator[None]:
    """Let a forward write to copies of the stage's buffers, and put the real ones back behind it."""
    before = renew_buffers(stage)
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)


def renew_buffers(stage: Stage) -> list[tuple[nn.Module, dict[str, Tensor | None]]]:
    """Put copies in the place of the stage's buffers, and return each module with those that it had.

    A graph in flight may hold the former ones, and a forward pass writes to the present ones.
    """
    before = [(module, dict(module._buffers)) for block in stage.blocks for module in block.module.modules()]
    copies: dict[int, Tensor] = {}  # a buffer with two names stays one
    for module, buffers in before:
        for name, value in buffers.items():
            if value is not None:
                module._buffers[name] = copies.setdefault(id(value), value.detach().clone())
    return before
