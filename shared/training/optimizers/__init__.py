"""Optimizers: built from a recipe so that every device applies the same operations in the same order, and what they keep."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shared.training.optimizers.config import OptimizerConfig, settings_of
from shared.training.optimizers.registry import OPTIMIZERS
from shared.training.optimizers.spec import OptimizerSettings, OptimizerSpec, StateLayout, StateTensor

__all__ = [
    "OPTIMIZERS",
    "OptimizerConfig",
    "OptimizerSettings",
    "OptimizerSpec",
    "StateLayout",
    "StateTensor",
    "build_optimizer",
    "optimizer_bytes",
    "state_layout",
]


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of one block, with the full learning rate; the caller sets each step's.

    parameters: at least one. Clipping is the caller's: it needs the whole block's gradient.
    foreach is off in all of torch's, because torch turns it on by itself on a GPU only, and it orders the operations
    differently.
    """
    return OPTIMIZERS[config.name].build(list(parameters), settings_of(config))


def state_layout(parameter: Tensor, config: OptimizerConfig) -> StateLayout:
    """What the optimizer keeps for a parameter once it has updated it; nothing where the parameter does not learn."""
    return OPTIMIZERS[config.name].state(parameter, settings_of(config)) if parameter.requires_grad else {}


def optimizer_bytes(parameters: Iterable[Tensor], config: OptimizerConfig) -> int:
    """Bytes that the optimizer keeps for these parameters; they may be on the meta device."""
    return sum(tensor.nbytes for parameter in parameters for tensor in state_layout(parameter, config).values())
