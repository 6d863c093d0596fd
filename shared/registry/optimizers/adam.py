"""Adam, and AdamW, whose weight decay does not pass through the moments: torch's."""

from typing import Any

from pydantic import Field, PositiveFloat

from shared.registry.optimizers.spec import (
    STEP_COUNT,
    BelowOne,
    Momentum,
    OptimizerSettings,
    OptimizerSpec,
    Shape,
    StateShape,
    StateShapes,
)


class AdamSettings(OptimizerSettings):
    learning_rate: PositiveFloat = 1e-3
    """See `OptimizerSettings.learning_rate`; torch's own."""
    betas: tuple[BelowOne, BelowOne] = Field(default=(0.9, 0.999), strict=False)
    """Decay of the optimizer's first and of its second running mean."""
    eps: PositiveFloat = 1e-8
    """Added to the divisor against division by zero."""


def _keywords(settings: AdamSettings) -> dict[str, Any]:
    return {"betas": settings.betas, "eps": settings.eps, "foreach": False}


def _state(shape: Shape, _settings: AdamSettings) -> StateShapes:
    return {"step": STEP_COUNT, "exp_avg": StateShape(shape), "exp_avg_sq": StateShape(shape)}


def _momentum(settings: AdamSettings) -> Momentum:
    decay, square_decay = settings.betas
    return Momentum("exp_avg", decay, square="exp_avg_sq", square_decay=square_decay, eps=settings.eps)


ADAM = OptimizerSpec("adam", AdamSettings, "torch.optim:Adam", _keywords, _state, _momentum)
ADAMW = OptimizerSpec("adamw", AdamSettings, "torch.optim:AdamW", _keywords, _state, _momentum)
