"""Adagrad: torch's."""

from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat

from shared.registry.optimizers.spec import STEP_COUNT, OptimizerSettings, OptimizerSpec, Shape, StateShape, StateShapes


class AdagradSettings(OptimizerSettings):
    learning_rate: PositiveFloat = 1e-2
    """See `OptimizerSettings.learning_rate`; torch's own."""
    eps: PositiveFloat = 1e-10
    """Added to the divisor against division by zero."""
    initial_accumulator_value: NonNegativeFloat = 0.0
    """Initial value of the sum of squared gradients: more makes the first updates smaller."""


def _keywords(settings: AdagradSettings) -> dict[str, Any]:
    return {
        "eps": settings.eps,
        "initial_accumulator_value": settings.initial_accumulator_value,
        "foreach": False,
    }


def _state(shape: Shape, _settings: AdagradSettings) -> StateShapes:
    return {"step": STEP_COUNT, "sum": StateShape(shape)}


ADAGRAD = OptimizerSpec("adagrad", AdagradSettings, "torch.optim:Adagrad", _keywords, _state)
