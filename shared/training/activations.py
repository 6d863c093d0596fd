"""Activation checkpoints: a block keeps its inputs alone for its backward, and computes its forward again there.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); torch's own implementation does the work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shared.model.chain import Block
from shared.model.features import Features, Slots
from shared.training.buffers import Buffers, put_buffers, renew_buffers


def run_again_later(block: Block, run: Callable[..., Features], features: Slots) -> Features:
    """Run a block over features without keeping what it computes; its backward runs it again, with the same results.

    run: the forward of the block, with its random numbers. The second time it begins with the buffers of the first, and what
    it writes to them is dropped.
    """
    import torch.utils.checkpoint as checkpoints

    again = _WithBuffers(block, renew_buffers(block))

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), again

    outputs: Any = checkpoints.checkpoint(
        _writable(block, run), *features, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    return tuple(outputs)


def _writable(block: Block, run: Callable[..., Features]) -> Callable[..., Features]:
    """Return the forward over copies of its inputs, where it writes to them: the second time needs them as they were."""
    if not block.modifies_input:
        return run
    return lambda *features: run(*(None if tensor is None else tensor.clone() for tensor in features))


class _WithBuffers:
    """Has copies of a block's earlier buffers in the place of those of now; again and again, as a forward may run again."""

    def __init__(self, block: Block, then: Buffers) -> None:
        self._block, self._then = block, then
        self._now: Buffers = []

    def __enter__(self) -> None:
        self._now = [(module, dict(module._buffers)) for module, _ in self._then]
        put_buffers(self._then)
        renew_buffers(self._block)

    def __exit__(self, *_: object) -> None:
        put_buffers(self._now)
