"""The metrics of evaluations by name. A new metric is its line here and its class in `shared/training/metrics/named.py`."""

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from shared.config import ShortSection
from shared.config.arguments import check_arguments

METRICS = {
    name: f"shared.training.metrics.named:{implementation}"
    for name, implementation in {
        "top1": "Top1",
        "top5": "Top5",
        "f1": "MacroF1",
        "perplexity": "Perplexity",
        "mae": "MeanAbsoluteError",
        "r2": "R2",
    }.items()
}
"""The class of each, as `package.module:name`. It is made with the labels that the loss takes."""
MOST_METRICS = 16
LOSS, ACCURACY = "loss", "accuracy"
"""Figures of every evaluation, the second where the loss is of classes."""
_OF_EVALUATIONS = {"loss", "accuracy", "test_loss", "metrics"}
_OF_STEPS = {"step", "epoch", "samples", "train_loss", "learning_rate", "edge_blocks", "staleness", "bits", "seconds"}
TAKEN = _OF_EVALUATIONS | _OF_STEPS | {"bytes_up", "bytes_down", "samples_per_second", "skipped", "step_loss"}
"""Names of the figures that a run has besides, as the columns of its history, and what its trackers have of steps."""
_ALLOWED = f"one of {', '.join(METRICS)}, or package.module:name"


class MetricConfig(ShortSection):
    """One metric of the evaluations. A name alone stands for a metric without arguments."""

    name: str
    """One of `METRICS`, or the function or class of a user's own, as `package.module:name`."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of a function or class of a user's own."""
    alias: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]{0,199}$")] | None = Field(
        default=None,
        json_schema_extra={"allowed": "1 to 200 letters, digits, _, ., : and -, of which the first is a letter or _"},
    )
    """Name under which its value is shown. Left out, its own."""

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if self.name not in METRICS and ":" not in self.name:
            raise ValueError(f"{self.name[:200]!r} is no metric; it must be {_ALLOWED}")
        check_arguments(f"metric {self.name[:200]!r}", self.kwargs)
        if self.name in METRICS and self.kwargs:
            raise ValueError(f"{self.name} takes no kwargs; leave them out")
        return self

    @property
    def shown_as(self) -> str:
        """The name of its value."""
        return self.alias or self.name


def check_distinct(metrics: tuple[MetricConfig, ...]) -> None:
    """Refuse values of one name. Raises ValueError."""
    names = [metric.shown_as for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"metrics has two values of the name {twice[:200]!r}; give one of them an alias of its own")
    if taken := next((name for name in names if name in TAKEN), None):
        raise ValueError(f"metrics has the alias {taken!r}, which is that of another figure of a run; choose another")
