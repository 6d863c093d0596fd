"""The figures and settings of a run that its trackers keep, by name."""

from typing import Any

from edge_agent.config import EdgeConfig
from edge_agent.sessions.session_record import recorded
from edge_agent.training.events import RowAdded, StepFinished
from shared.errors import ConfigError
from shared.events import Event

_STEPS_BETWEEN = 10
_SECTIONS = ("model", "data", "training", "deployment")


def figures_of(event: Event) -> tuple[int, dict[str, float]] | None:
    """Return the steps that were done and figures at that moment; None for an event that has none.

    They are those of a row of the history, by the names of its columns, or `step_loss`, the loss of every tenth step.
    """
    match event:
        case RowAdded(row):
            numbers = {name: value for name, value in row._asdict().items() if isinstance(value, int | float)}
            return row.step, {name: value for name, value in numbers.items() if name != "step"} | dict(row.metrics)
        case StepFinished(step=step, loss=loss) if (step + 1) % _STEPS_BETWEEN == 0:
            return step + 1, {"step_loss": loss}
    return None


def settings_of(config: EdgeConfig) -> dict[str, str]:
    """Return the settings that a result follows from, by dotted key, as text."""
    sections = {name: recorded(getattr(config, name)) for name in _SECTIONS}
    for ours in ("callbacks", "trackers"):
        del sections["training"][ours]
    return dict(_leaves("", sections))


def _leaves(key: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in _leaves(f"{key}.{name}" if key else name, item)]
    return [(key, str(value))]


def not_installed(tracker: str, cause: ImportError) -> ConfigError:
    """Build the error of a tracker whose package is missing or broken here."""
    return ConfigError(
        f'training.trackers: "{tracker}" cannot be imported here ({cause}); install it with: pip install '
        f"'isthmus[{tracker}]'"
    )
