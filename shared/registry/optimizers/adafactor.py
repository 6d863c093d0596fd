"""Adafactor (Shazeer and Stern 2018): torch's. Of a matrix it keeps the second moments of rows and columns alone.

The learning rate is the largest relative step: a weight moves by that share of its tensor's own size, and by less in the
first steps of a training.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from shared.registry.optimizers.spec import STEP_COUNT, OptimizerSettings, OptimizerSpec, Shape, StateShape, StateShapes


class AdafactorSettings(OptimizerSettings):
    learning_rate: PositiveFloat = 1e-2
    """See `OptimizerSettings.learning_rate`; torch's own."""
    beta2_decay: Annotated[float, Field(lt=0)] = -0.8
    """Exponent of the step in the decay of the second moments: the closer to 0, the less of them is kept."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Root mean square of an update, above which it is scaled down."""


def _keywords(settings: AdafactorSettings) -> dict[str, Any]:
    return {"beta2_decay": settings.beta2_decay, "d": settings.clip_threshold, "foreach": False}


def _state(shape: Shape, _settings: AdafactorSettings) -> StateShapes:
    if len(shape) < 2:
        return {"step": STEP_COUNT, "variance": StateShape(shape)}
    *outer, rows, columns = shape
    return {
        "step": STEP_COUNT,
        "row_var": StateShape((*outer, rows, 1)),
        "col_var": StateShape((*outer, 1, columns)),
    }


ADAFACTOR = OptimizerSpec(
    "adafactor", AdafactorSettings, "torch.optim:Adafactor", _keywords, _state, is_elementwise=False
)
