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

LONG_DECAY = 0.99
"""Least decay of the momentum where updates come late, as in Ajanthan et al. 2025, arXiv 2505.01099."""
LONG_LEAD = 2.0
"""The lead of a prediction by it. A gradient that is K updates late bounds the curvature in which training is stable. With a
decay near 1 this bound is highest if weights are predicted for 1.5 to 2 K updates."""


class SgdSettings(OptimizerSettings):
    momentum: BelowOne = 0.0
    """Share of the last update that is kept. Where updates come late, `deployment.staleness_correction` may raise it."""
    nesterov: bool = False
    """Nesterov's form of momentum. Where that raises the momentum, predicted weights take its place."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov is true but momentum is 0; it needs a momentum above 0")
        return self


def _keywords(settings: SgdSettings) -> dict[str, Any]:
    return {"momentum": settings.momentum, "nesterov": settings.nesterov, "foreach": False}


def _state(shape: Shape, settings: SgdSettings) -> StateShapes:
    return {"momentum_buffer": StateShape(shape)} if settings.momentum else {}


def _momentum(settings: SgdSettings) -> Momentum:
    decay = max(settings.momentum, LONG_DECAY)
    dampening = 1 - (1 - decay) / (1 - settings.momentum)
    # Nesterov's update looks ahead as a prediction does, which takes its place.
    entries = {"momentum": decay, "dampening": dampening, "nesterov": False}
    return Momentum("momentum_buffer", decay, LONG_LEAD, entries, is_own=settings.momentum > 0)


SGD = OptimizerSpec("sgd", SgdSettings, "torch.optim:SGD", _keywords, _state, _momentum)
