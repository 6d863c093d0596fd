"""The finished run whose result lies in the output folder: a run that cannot go on, although a user may want it longer.

Its session is gone, so only the settings in its `summary.json` tell whose result that is. Where another result takes its
place, it goes aside.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from edge_agent.config import EdgeConfig
from edge_agent.sessions.session_record import recorded
from shared.errors import ConfigError

MODEL, ADAPTERS, BEST, EMA = "model.safetensors", "adapters.safetensors", "best.safetensors", "ema.safetensors"
SUMMARY = "summary.json"
"""Names of the files of a result, which are written together at its end."""
_LENGTH = {"training.epochs", "training.max_steps"}


def settings_of_result(config: EdgeConfig) -> dict[str, JsonValue]:
    """Return what a result is the result of, by key: the model, the data, the first weights, and the length."""
    model, train, training = config.model, config.data.train, config.training
    return {
        "model.factory": model.factory,
        "model.kwargs": model.kwargs,
        "data.train.factory": train.factory,
        "data.train.kwargs": train.kwargs,
        "training.seed": training.seed,
        "training.start_from": recorded(training.start_from),
        "training.epochs": training.epochs,
        "training.max_steps": training.max_steps,
    }


def folder_aside(directory: Path) -> Path | None:
    """Return the folder in which the result in `directory` is kept aside, named after its time; None if there is none."""
    places = (directory / name for name in (MODEL, ADAPTERS, BEST, EMA, SUMMARY))
    written = [place.stat().st_mtime for place in places if place.exists()]
    if not written:
        return None
    return directory / "earlier" / datetime.fromtimestamp(max(written), UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def is_result_of(directory: Path, session: str, steps: int) -> bool:
    """Tell whether the result in `directory` is of these steps of this session, so that it is the same as a new one."""
    try:
        known = json.loads((directory / SUMMARY).read_text())
        return bool((known["session"], known["steps"]) == (session, steps))
    except (OSError, ValueError, TypeError, KeyError):  # none, or a foreign one
        return False


def check_not_longer(config: EdgeConfig, steps: int) -> None:
    """Refuse a run of more steps than the finished one of the same model and data, which it would begin again from the seed.

    One of the same length may: a service begins it again when the device does. Raises ConfigError.
    """
    directory = config.output.directory
    if directory is None or config.member is not None:  # a member's steps are the group's
        return
    model = (directory / MODEL).absolute()
    done = _finished_steps(directory / SUMMARY, settings_of_result(config))
    begins_with_it = (start := config.training.start_from) is not None and start.path.absolute() in (
        model,
        model.parent,
    )
    if done is not None and done < steps and model.exists() and not begins_with_it:
        raise ConfigError(
            f"output.directory: {directory} has the result of this training after {done} steps, and a run that ended without "
            f"checkpoints.keep_finished cannot go on to {steps}; set training.start_from={model} for a run that begins with "
            "its weights, or choose another output.directory to begin from the seed"
        )


def _finished_steps(summary: Path, settings: dict[str, JsonValue]) -> int | None:
    """Return the steps of a finished run that had these settings but for another length; None for any other."""
    try:
        known = json.loads(summary.read_text())
        before, steps = dict(known["settings"]), int(known["steps"])
        has_diverged = known["diverged_at_step"] is not None
    except (OSError, ValueError, TypeError, KeyError):  # none, or an older or a foreign one
        return None
    differ = {key for key, value in settings.items() if key not in before or before[key] != value}
    return steps if differ and differ <= _LENGTH and not has_diverged else None
