"""Weights that several blocks use: the sum of their gradients must not depend on where the blocks run.

A block hands on the sum of its own uses. In one process the gradients of all uses are added one after the other, the last
first, and that gives the same bits if every block but the last uses the weight once.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

from shared.errors import ModelError
from shared.model.behaviour import made_up_features
from shared.model.features import Features, FeatureSpecs, call_module
from shared.model.random_state import random_state
from shared.model.state_entries import BlockState

_SAMPLES = 2


def check_memory(title: str, states: Sequence[BlockState]) -> None:
    """Refuse a parameter that learns and lies in memory where another tensor lies: two workers have no memory together.

    Constants may lie where they like. Raises ModelError.
    """
    extents = sorted(extent for state in states for extent in _extents(state))
    for one, other in pairwise(extents):
        if other.begin < one.end and (one.learns or other.learns):
            raise ModelError(
                f"{one.name!r} and {other.name!r} of {title} are two tensors over the same memory, which would not be the same "
                "on two workers; tie the parameter itself, as in second.weight = first.weight, or copy it"
            )


class _Extent(NamedTuple):
    """The bytes from the first of a tensor to its last."""

    begin: int
    end: int
    name: str
    learns: bool


def _extents(state: BlockState) -> Iterator[_Extent]:
    """The extents of the tensors of a block, each once."""
    tensors = {id(entry.value): (entry.name, entry.value) for entry in reversed(state.entries)}
    for name, value in tensors.values():
        if value.numel() and not value.is_meta and value.layout is torch.strided:
            last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
            end = value.data_ptr() + (last + 1) * value.element_size()
            yield _Extent(value.data_ptr(), end, name, value.requires_grad)


def check_tied(
    title: str, blocks: Sequence[tuple[str, nn.Module]], states: Sequence[BlockState], features: Sequence[FeatureSpecs]
) -> None:
    """Refuse a weight that a block uses several times and a later block again. Raises ModelError.

    title: of the module. features: those that enter each block. The caller keeps modes and buffers.
    """
    for last, state in enumerate(states):
        for tied in state.tied:
            value = tied.entry.value
            for index in range(tied.keeper, last):
                name, block = blocks[index]
                uses = _uses(block, features[index], value) if any(value is each for each in block.parameters()) else 0
                if uses > 1:
                    raise ModelError(
                        f"parameter {tied.entry.name!r} of {title} is used {uses} times by block {name!r} and again by block "
                        f"{blocks[last][0]!r}, so the sum of its gradients would depend on the placement; make all between "
                        "them one block"
                    )


def _uses(block: nn.Module, inputs: FeatureSpecs, parameter: torch.Tensor) -> int:
    """Count the operations of a block that hand a gradient to a parameter; 0 where it cannot run on made-up inputs."""
    outputs = _outputs(block, made_up_features(inputs, _SAMPLES))
    return 0 if outputs is None else _edges(outputs, parameter)


def uses_of_inputs(block: nn.Module, inputs: FeatureSpecs, slots: Collection[int]) -> dict[int, int]:
    """Count the operations of a block that hand a gradient to each of some slots of its inputs; two where that is not known."""
    features = made_up_features(inputs, _SAMPLES)
    leaves = {slot: features[slot].requires_grad_() for slot in slots}
    outputs = _outputs(block, tuple(one.clone() if slot not in leaves else one for slot, one in enumerate(features)))
    return {slot: 2 if outputs is None else _edges(outputs, leaf) for slot, leaf in leaves.items()}


def _outputs(block: nn.Module, features: Features) -> Features | None:
    """The outputs of a block with their graph; None where it cannot run on made-up inputs."""
    try:
        with torch.enable_grad(), random_state("uses"):
            return call_module(block, features)
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
        ArithmeticError,
    ):  # only right numbers will do for this one
        return None


def _edges(outputs: Features, leaf: torch.Tensor) -> int:
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, found = set(pending), 0
    for node in pending:
        for behind, _ in node.next_functions:
            if behind is None:
                continue
            if getattr(behind, "variable", None) is leaf:
                found += 1
            elif behind not in seen:
                seen.add(behind)
                pending.append(behind)
    return found
