"""The keys of callbacks and trackers: what is told of a run while it trains. A new tracker is its line here and its file."""

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from shared.config import FactoryName, OneOf, ShortSection
from shared.config.arguments import check_arguments

TRACKERS = {
    "tensorboard": "edge_agent.callbacks.trackers.tensorboard:TensorBoard",
    "mlflow": "edge_agent.callbacks.trackers.mlflow:MLflow",
    "wandb": "edge_agent.callbacks.trackers.wandb:WeightsAndBiases",
}
"""The factory of each, as `package.module:name`. The extra that installs its package bears its name."""
MOST_CALLBACKS = 16


class CallbackConfig(ShortSection):
    """One callback. A name alone stands for one without arguments."""

    name: FactoryName
    """Function or class that makes it, as `package.module:name`."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments with which it is made."""

    @model_validator(mode="after")
    def _arguments_are_bounded(self) -> Self:
        check_arguments(f"{self.name[:200]!r}", self.kwargs)
        return self

    @property
    def factory(self) -> str:
        """The function or class that makes it."""
        return self.name


class TrackerConfig(CallbackConfig):
    """One tracker. A name alone stands for one without arguments."""

    name: Annotated[str, OneOf(TRACKERS)]
    """One of `TRACKERS`."""

    @property
    def factory(self) -> str:
        """The function or class that makes it."""
        return TRACKERS[self.name]
