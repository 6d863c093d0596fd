"""Which blocks only look numbers up: what they pass on can be turned back by looking for the nearest row of their table.

A block looks up when every number that comes in decides places of its own in what goes out. An embedding does, and so does
whatever works on each of its rows by itself; attention, a recurrent layer or a sum mixes. Decided by running the blocks with
made-up weights, so both sides find the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared.model.behaviour import run_made_up
from shared.model.random_state import random_state
from shared.model.spec import TensorSpec

_NOTICEABLE = 1e-5
"""Of the largest number of an output: less is rounding."""


def leading_lookups(blocks: Sequence[nn.Module], inputs: TensorSpec, persistent: frozenset[int]) -> int:
    """How many of the first blocks only look up; 0 where the inputs are no integers. The caller keeps modes and buffers."""
    if inputs.dtype.is_floating_point:
        return 0
    values = [_with_changes(inputs, pair) for pair in _pairs(inputs)]
    with torch.no_grad(), random_state("lookups"):
        for index, block in enumerate(blocks):
            try:
                values = [run_made_up(block, value, persistent, training=False)[0] for value in values]
            except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError):  # only right numbers will do
                return index
            if any(_mixed(value) for value in values):
                return index
    return len(blocks)


def _pairs(inputs: TensorSpec) -> list[tuple[int, int]]:
    """Neighbours at the beginning, in the middle and at the end of a sample; one number alone is its own neighbour."""
    count = TensorSpec((1, *inputs.shape[1:]), torch.uint8).bytes
    return sorted({(place, min(place + 1, count - 1)) for place in (0, count // 2, max(count - 2, 0))})


def _with_changes(inputs: TensorSpec, places: tuple[int, int]) -> Tensor:
    """A batch of a sample of ones, the same with another number at the first place, and with another at the second."""
    batch = torch.ones((3, *inputs.shape[1:]), dtype=inputs.dtype)
    for sample, place in enumerate(places, start=1):
        batch[sample].view(-1)[place] = 0
    return batch


def _mixed(output: Tensor) -> bool:
    """Whether some place of the output follows from both of the numbers that were changed."""
    plain, one, other = output.double()
    threshold = _NOTICEABLE * float(output.abs().max())
    return bool((((one - plain).abs() > threshold) & ((other - plain).abs() > threshold)).any())
