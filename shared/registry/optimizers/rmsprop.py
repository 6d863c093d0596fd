"""RMSprop: torch's."""

from typing import Any

from pydantic import PositiveFloat

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


class RmspropSettings(OptimizerSettings):
    learning_rate: PositiveFloat = 1e-2
    """See `OptimizerSettings.learning_rate`; torch's own."""
    momentum: BelowOne = 0.0
    """Share of the last update that is kept."""
    alpha: BelowOne = 0.99
    """Decay of the running mean of the squared gradient."""
    eps: PositiveFloat = 1e-8
    """Added to the divisor against division by zero."""


def _keywords(settings: RmspropSettings) -> dict[str, Any]:
    return {"alpha": settings.alpha, "eps": settings.eps, "momentum": settings.momentum, "foreach": False}


def _state(shape: Shape, settings: RmspropSettings) -> StateShapes:
    layout = {"step": STEP_COUNT, "square_avg": StateShape(shape)}
    return layout | ({"momentum_buffer": StateShape(shape)} if settings.momentum else {})


def _momentum(settings: RmspropSettings) -> Momentum | None:
    return Momentum("momentum_buffer", settings.momentum) if settings.momentum else None


RMSPROP = OptimizerSpec("rmsprop", RmspropSettings, "torch.optim:RMSprop", _keywords, _state, _momentum)
