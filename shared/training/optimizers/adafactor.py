"""Adafactor (Shazeer and Stern 2018): torch's. Of a matrix it keeps the second moments of rows and columns alone.

The learning rate is the largest relative step: a weight moves by that share of its tensor's own size, and by less in the
first steps of a training.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from shared.training.optimizers.spec import (
    OptimizerSettings,
    OptimizerSpec,
    StateLayout,
    StateTensor,
    like,
    step_count,
)


class AdafactorSettings(OptimizerSettings):
    beta2_decay: Annotated[float, Field(lt=0)] = -0.8
    """Exponent of the step in the decay of the second moments: the closer to 0, the less of them is kept."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Root mean square of an update, above which it is scaled down."""


def _build(parameters: list[nn.Parameter], settings: AdafactorSettings) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(
        parameters,
        lr=settings.learning_rate,
        beta2_decay=settings.beta2_decay,
        d=settings.clip_threshold,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


def _state(parameter: Tensor, _settings: AdafactorSettings) -> StateLayout:
    if parameter.dim() < 2:
        return {"step": step_count(), "variance": like(parameter)}
    *outer, rows, columns = parameter.shape
    return {
        "step": step_count(),
        "row_var": StateTensor((*outer, rows, 1), parameter.dtype),
        "col_var": StateTensor((*outer, 1, columns), parameter.dtype),
    }


ADAFACTOR = OptimizerSpec("adafactor", AdafactorSettings, _build, _state)
