"""Stochastic gradient descent with momentum: torch's."""

from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from shared.training.optimizers.spec import BelowOne, OptimizerSettings, OptimizerSpec, StateLayout, like


class SgdSettings(OptimizerSettings):
    momentum: BelowOne = 0.0
    """Share of the last update that is kept."""
    nesterov: bool = False
    """Nesterov's form of momentum."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov is true but momentum is 0; it needs a momentum above 0")
        return self


def _build(parameters: list[nn.Parameter], settings: SgdSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def _state(parameter: Tensor, settings: SgdSettings) -> StateLayout:
    return {"momentum_buffer": like(parameter)} if settings.momentum else {}


SGD = OptimizerSpec("sgd", SgdSettings, _build, _state)
