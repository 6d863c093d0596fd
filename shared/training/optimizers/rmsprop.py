"""RMSprop: torch's."""

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from shared.training.optimizers.spec import (
    BelowOne,
    OptimizerSettings,
    OptimizerSpec,
    StateLayout,
    like,
    step_count,
)


class RmspropSettings(OptimizerSettings):
    momentum: BelowOne = 0.0
    """Share of the last update that is kept."""
    alpha: BelowOne = 0.99
    """Decay of the running mean of the squared gradient."""
    eps: PositiveFloat = 1e-8
    """Added to the divisor against division by zero."""


def _build(parameters: list[nn.Parameter], settings: RmspropSettings) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(
        parameters,
        lr=settings.learning_rate,
        alpha=settings.alpha,
        eps=settings.eps,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def _state(parameter: Tensor, settings: RmspropSettings) -> StateLayout:
    layout = {"step": step_count(), "square_avg": like(parameter)}
    return layout | ({"momentum_buffer": like(parameter)} if settings.momentum else {})


RMSPROP = OptimizerSpec("rmsprop", RmspropSettings, _build, _state)
