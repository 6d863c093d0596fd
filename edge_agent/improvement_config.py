"""The keys that follow a figure of the evaluations: when a run ends early, and which of its weights are kept."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from shared.config import ShortSection
from shared.registry.metrics import ACCURACY, LOSS

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig


class FollowedFigure(ShortSection):
    short_key: ClassVar[str] = "metric"

    metric: str = LOSS
    """Figure of the test set that tells: "loss", "accuracy", or one of `training.metrics`."""
    mode: Literal["min", "max"] | None = Field(default=None, examples=["min"])
    """Direction in which it gets better; "min" for the loss and "max" for the accuracy where it is left out."""

    @property
    def falls(self) -> bool:
        """Tell whether less is better."""
        return (self.mode or ("min" if self.metric == LOSS else "max")) == "min"


class EarlyStopConfig(FollowedFigure):
    patience: PositiveInt = 3
    """Evaluations in a row that may pass without a better figure, before the run ends after the last of them."""
    min_delta: NonNegativeFloat = 0.0
    """Amount by which a figure must be better than the best one to count as better."""


def followed(config: "EdgeConfig") -> dict[str, FollowedFigure]:
    """List the figures that a run follows, by the key that asks for each."""
    figures: dict[str, FollowedFigure | None] = {
        "training.early_stop": config.training.early_stop,
        "training.keep_best": config.training.keep_best,
    }
    schedule = config.training.schedule
    if schedule.name == "plateau":
        figures["training.schedule"] = FollowedFigure(metric=schedule.metric, mode=schedule.mode)
    return {key: figure for key, figure in figures.items() if figure is not None}


def check_followed(config: "EdgeConfig") -> None:
    """Refuse figures that no evaluation of this run can give, and weights that have no place. Raises ValueError."""
    if config.training.keep_best is not None and config.checkpoints.location == "none":
        raise ValueError(
            'training.keep_best is set and checkpoints.location is "none", so the weights have no place; leave one of them out'
        )
    training = config.training
    for key, figure in followed(config).items():
        # A member of a group goes by the evaluations of others, too, but keeps the best weights of its own.
        if config.member is None or key == "training.keep_best":
            if config.data.test is None:
                raise ValueError(
                    f"{key} follows evaluations and data.test is left out, so there are none; give it, or do without"
                )
            if key != "training.keep_best" and not (training.evaluate_every_epochs or training.evaluate_every_steps):
                raise ValueError(
                    f"{key} follows evaluations, and there is none before the end; set training.evaluate_every_epochs or "
                    "training.evaluate_every_steps"
                )
        check_figure(f"{key}.metric", figure, config)


def check_figure(key: str, figure: FollowedFigure, config: "EdgeConfig") -> None:
    """Refuse a figure that no evaluation gives, or of which nobody says which is better. Raises ValueError."""
    known = [LOSS, ACCURACY, *(metric.shown_as for metric in config.training.metrics)]
    if figure.metric not in known:
        raise ValueError(
            f'{key} is "{figure.metric}", which is not computed; choose one of {", ".join(map(repr, known))}, or add it to '
            "training.metrics"
        )
    if figure.mode is None and figure.metric not in (LOSS, ACCURACY):
        raise ValueError(f'{key} is "{figure.metric}" and mode is left out; say which is better, "min" or "max"')
