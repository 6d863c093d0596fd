"""Adam, and AdamW, whose weight decay does not pass through the moments: torch's."""

from typing import Any

from pydantic import PositiveFloat

from shared.registry.optimizers.spec import (
    STEP_COUNT,
    BelowOne,
    OptimizerSettings,
    OptimizerSpec,
    Shape,
    StateShape,
    StateShapes,
)


class AdamSettings(OptimizerSettings):
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay of the optimizer's first and of its second running mean."""
    eps: PositiveFloat = 1e-8
    """Added to the divisor against division by zero."""


def _keywords(settings: AdamSettings) -> dict[str, Any]:
    return {"betas": settings.betas, "eps": settings.eps, "foreach": False}


def _state(shape: Shape, _settings: AdamSettings) -> StateShapes:
    return {"step": STEP_COUNT, "exp_avg": StateShape(shape), "exp_avg_sq": StateShape(shape)}


ADAM = OptimizerSpec("adam", AdamSettings, "torch.optim:Adam", _keywords, _state)
ADAMW = OptimizerSpec("adamw", AdamSettings, "torch.optim:AdamW", _keywords, _state)
