"""An optimizer from its configuration: built so that every device applies the same operations in the same order."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shared.training.optimizers.config import OptimizerConfig, settings_of
from shared.training.optimizers.registry import OPTIMIZERS
from shared.training.optimizers.spec import StateLayout


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of one block, with the full learning rate; the caller sets each step's.

    parameters: at least one. The caller clips, because clipping needs the whole block's gradient.
    `foreach` is off in all of torch's optimizers: torch turns it on by itself on a GPU only, where it changes the order of
    the operations.
    """
    return OPTIMIZERS[config.name].build(list(parameters), settings_of(config))


def state_layout(parameter: Tensor, config: OptimizerConfig) -> StateLayout:
    """What the optimizer keeps for a parameter once it has updated it; nothing where the parameter does not learn."""
    return OPTIMIZERS[config.name].state(parameter, settings_of(config)) if parameter.requires_grad else {}


def optimizer_bytes(parameters: Iterable[Tensor], config: OptimizerConfig) -> int:
    """Bytes that the optimizer keeps for these parameters; they may be on the meta device."""
    return sum(tensor.nbytes for parameter in parameters for tensor in state_layout(parameter, config).values())
