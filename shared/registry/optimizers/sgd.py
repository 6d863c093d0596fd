"""Stochastic gradient descent with momentum: torch's."""

from typing import Any, Self

from pydantic import model_validator

from shared.registry.optimizers.spec import (
    BelowOne,
    Momentum,
    OptimizerSettings,
    OptimizerSpec,
    Shape,
    StateShape,
    StateShapes,
)


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


def _keywords(settings: SgdSettings) -> dict[str, Any]:
    return {"momentum": settings.momentum, "nesterov": settings.nesterov, "foreach": False}


def _state(shape: Shape, settings: SgdSettings) -> StateShapes:
    return {"momentum_buffer": StateShape(shape)} if settings.momentum else {}


def _momentum(settings: SgdSettings) -> Momentum | None:
    if not settings.momentum:
        return None
    share = settings.momentum if settings.nesterov else 1.0  # Nesterov's update looks one more decay ahead
    return Momentum("momentum_buffer", settings.momentum, share=share)


SGD = OptimizerSpec("sgd", SgdSettings, "torch.optim:SGD", _keywords, _state, _momentum)
