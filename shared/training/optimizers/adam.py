"""Adam, and AdamW, whose weight decay does not pass through the moments: torch's."""

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


class AdamSettings(OptimizerSettings):
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay of the optimizer's first and of its second running mean."""
    eps: PositiveFloat = 1e-8
    """Added to the divisor against division by zero."""


def _adam(parameters: list[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    return _built(torch.optim.Adam, parameters, settings)


def _adamw(parameters: list[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    return _built(torch.optim.AdamW, parameters, settings)


def _built(
    kind: type[torch.optim.Adam], parameters: list[nn.Parameter], settings: AdamSettings
) -> torch.optim.Optimizer:
    return kind(
        parameters,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def _state(parameter: Tensor, _settings: AdamSettings) -> StateLayout:
    return {"step": step_count(), "exp_avg": like(parameter), "exp_avg_sq": like(parameter)}


ADAM = OptimizerSpec("adam", AdamSettings, _adam, _state)
ADAMW = OptimizerSpec("adamw", AdamSettings, _adamw, _state)
