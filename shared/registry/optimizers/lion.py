"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2): ours, torch has none.

Half of Adam's state. Every weight moves by the learning rate, which should therefore be three to ten times smaller than
Adam's, and the weight decay as many times larger.
"""

from typing import Any

from pydantic import Field, PositiveFloat

from shared.registry.optimizers.spec import BelowOne, OptimizerSettings, OptimizerSpec, Shape, StateShape, StateShapes


class LionSettings(OptimizerSettings):
    learning_rate: PositiveFloat = 1e-4
    """See `OptimizerSettings.learning_rate`; a tenth of Adam's."""
    betas: tuple[BelowOne, BelowOne] = Field(default=(0.9, 0.99), strict=False)
    """Decay of the mean whose sign is the update, and of the mean that is kept."""


def _keywords(settings: LionSettings) -> dict[str, Any]:
    return {"betas": settings.betas}


def _state(shape: Shape, _settings: LionSettings) -> StateShapes:
    return {"exp_avg": StateShape(shape)}


LION = OptimizerSpec("lion", LionSettings, "shared.training.optimizers.lion:Lion", _keywords, _state)
