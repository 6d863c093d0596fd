"""Which blocks only look numbers up: what they pass on can be turned back by looking for the nearest row of their table.

A block looks up when, in some tensor that goes out, every number that comes in decides places of its own. An embedding does,
and so does whatever works on each of its rows by itself; attention, a recurrent layer or a sum mixes. Decided by running the
blocks with made-up weights, so both sides find the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared.model.behaviour import run_made_up
from shared.model.features import Features, FeatureSpecs
from shared.model.random_state import random_state
from shared.model.spec import TensorSpec

_NOTICEABLE = 1e-5
"""A share of the largest number of an output; a smaller difference is rounding."""


def leading_lookups(blocks: Sequence[nn.Module], inputs: FeatureSpecs, persistent: frozenset[int]) -> int:
    """How many of the first blocks only look up; 0 where no input is of integers. The caller keeps modes and buffers."""
    values = [
        _with_changes(inputs, slot, pair)
        for slot, spec in enumerate(inputs)
        if not spec.differentiable
        for pair in _pairs(spec)
    ]
    if not values:
        return 0
    with torch.no_grad(), random_state("lookups"):
        for index, block in enumerate(blocks):
            try:
                values = [run_made_up(block, value, persistent, training=False)[0] for value in values]
            except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError):  # only right numbers will do
                return index
            if _all_mixed(values):
                return index
    return len(blocks)


def _pairs(spec: TensorSpec) -> list[tuple[int, int]]:
    """Neighbours at the beginning, in the middle and at the end of a sample; one number alone is its own neighbour."""
    count = TensorSpec((1, *spec.shape[1:]), torch.uint8).bytes
    return sorted({(place, min(place + 1, count - 1)) for place in (0, count // 2, max(count - 2, 0))})


def _with_changes(inputs: FeatureSpecs, slot: int, places: tuple[int, int]) -> Features:
    """A batch of a sample of ones, the same with another number at the first place of a slot, and with one at the second."""
    batch = tuple(torch.ones((3, *spec.shape[1:]), dtype=spec.dtype) for spec in inputs)
    for sample, place in enumerate(places, start=1):
        batch[slot][sample].view(-1)[place] = 0
    return batch


def _all_mixed(values: Sequence[Features]) -> bool:
    """Whether every slot that follows from numbers that were changed mixes them, and there is one."""
    mixing = []
    for outputs in zip(*values, strict=True):
        effects = [_effects(output) for output in outputs]
        if any(bool((one | other).any()) for one, other in effects):
            mixing.append(any(bool((one & other).any()) for one, other in effects))
    return bool(mixing) and all(mixing)


def _effects(output: Tensor) -> tuple[Tensor, Tensor]:
    """Which places of an output follow from the first number that was changed, and which from the second."""
    plain, one, other = output.double()
    threshold = _NOTICEABLE * float(output.abs().max())
    return (one - plain).abs() > threshold, (other - plain).abs() > threshold
