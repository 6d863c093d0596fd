"""Activation checkpoints: a block keeps its inputs alone for its backward, and computes its forward again there.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); torch's own implementation does the work.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from shared.model.chain import Block
from shared.model.features import Features, Slots


def run_again_later(block: Block, run: Callable[..., Features], features: Slots) -> Features:
    """Run a block over features without keeping what it computes; its backward runs it again, with the same results.

    run: the forward of the block, with its random numbers. What it writes to buffers the second time is undone.
    """
    import torch.utils.checkpoint as checkpoints

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _kept_buffers(block)

    outputs: Any = checkpoints.checkpoint(
        _writable(block, run), *features, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    return tuple(outputs)


def _writable(block: Block, run: Callable[..., Features]) -> Callable[..., Features]:
    """Return the forward over copies of its inputs, where it writes to them: the second time needs them as they were."""
    if not block.modifies_input:
        return run
    return lambda *features: run(*(None if tensor is None else tensor.clone() for tensor in features))


@contextmanager
def _kept_buffers(block: Block) -> Iterator[None]:
    """Afterwards the buffers of a block have the values that they have now."""
    buffers = [*block.named_buffers().values(), *block.named_transients().values()]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
