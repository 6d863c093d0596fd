"""Adagrad: torch's."""

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from shared.training.optimizers.spec import OptimizerSettings, OptimizerSpec, StateLayout, like, step_count


class AdagradSettings(OptimizerSettings):
    eps: PositiveFloat = 1e-10
    """Added to the divisor against division by zero."""
    initial_accumulator_value: NonNegativeFloat = 0.0
    """What the sum of squared gradients begins with: more makes the first updates smaller."""


def _build(parameters: list[nn.Parameter], settings: AdagradSettings) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(
        parameters,
        lr=settings.learning_rate,
        eps=settings.eps,
        initial_accumulator_value=settings.initial_accumulator_value,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def _state(parameter: Tensor, _settings: AdagradSettings) -> StateLayout:
    return {"step": step_count(), "sum": like(parameter)}


ADAGRAD = OptimizerSpec("adagrad", AdagradSettings, _build, _state)
