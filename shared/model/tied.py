"""Weights that several blocks use: the sum of their gradients must not depend on where the blocks run.

A block hands on the sum of its own uses. In one process the gradients of all uses are added one after the other, the last
first, and that gives the same bits if every block but the last uses the weight once.
"""

from collections.abc import Sequence

import torch
from torch import nn

from shared.errors import ModelError
from shared.model.behaviour import made_up_features
from shared.model.features import FeatureSpecs, call_module
from shared.model.random_state import random_state
from shared.model.state_entries import BlockState

_SAMPLES = 2


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
    try:
        with torch.enable_grad(), random_state("uses"):
            outputs = call_module(block, made_up_features(inputs, _SAMPLES))
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
        ArithmeticError,
    ):  # only right numbers will do for this one
        return 0
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, found = set(pending), 0
    for node in pending:
        for behind, _ in node.next_functions:
            if behind is None:
                continue
            if getattr(behind, "variable", None) is parameter:
                found += 1
            elif behind not in seen:
                seen.add(behind)
                pending.append(behind)
    return found
