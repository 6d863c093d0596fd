"""The choice of the stored session that a run continues, and the check of its settings: those that decide the result
must not change.

A session's record holds the whole configuration that the session began with. Knows nothing of the trainer.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
from pydantic import BaseModel

from edge_agent.config import EdgeConfig
from edge_agent.experiment.workload import Workload
from edge_agent.sessions.finished import check_not_longer
from edge_agent.sessions.session_record import SessionRecord, trainer_addresses
from edge_agent.sessions.stored_session import StoredSession, stored_sessions
from shared.checkpoint import LocalFiles
from shared.config import toml_value
from shared.errors import ConfigError, DataError, StorageError
from shared.version import NO_VERSION, PROTOCOL_VERSION

W = TypeVar("W", bound=Workload)

_log = structlog.get_logger(__name__)

_DECISIVE = ("model", "data", "training", "deployment", "placement", "engine", "compute")
"""Sections that decide the training's result, or its last bits."""
_FREE = {
    "engine",
    "compute",
    "data.workers",
    "data.test",
    "data.calibration",
    "training.epochs",
    "training.max_steps",
    "training.evaluate_every_epochs",
    "training.evaluate_every_steps",
    "training.early_stop",
    "training.callbacks",
    "training.trackers",
    "training.on_nan",
}
"""Keys of these sections that may change between two processes: the length of training, its devices, and measurements."""
_EVALUATING = {"data.test", "training.evaluate_every_epochs", "training.evaluate_every_steps"}
"""Keys among them that decide the result too, where the learning rate follows the evaluations."""
_IDENTITY = {"model.factory", "model.kwargs", "data.train", "training.seed"}
"""Keys that identify an experiment. If one differs, it is another experiment, for which this session does not count."""


class Difference(NamedTuple):
    """A key whose value differs from the session's first configuration."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.now)} and was {_shown(self.before)}"


@dataclass(frozen=True, slots=True)
class Resume:
    """A request for a stored session: the named one, or the newest of this experiment, or else a new one."""

    session_id: str | None = None


class Chosen(NamedTuple):
    """A session to continue, and the configuration for it."""

    session_id: str
    config: EdgeConfig


def choose_session(
    folder: LocalFiles | None, config_for: Callable[[SessionRecord], EdgeConfig], session_id: str | None
) -> Chosen | None:
    """Choose the session to continue: the named one, or the newest that no process has open and whose settings allow it.

    config_for: the configuration under which a session would continue. None if a new run begins. Raises ConfigError for
    the named session, and for one of the same experiment in which only settings that decide the result differ.
    """
    refusal: ConfigError | None = None
    stored = [entry for entry in stored_sessions(folder) if session_id in (None, entry[0].session_id)]
    for record, checkpoint, is_open in sorted(stored, key=lambda entry: entry[0].began, reverse=True):
        if is_open:
            continue
        config = config_for(record)
        free = _FREE - _EVALUATING if config.training.schedule.name == "plateau" else _FREE
        decisive = [change for change in _differences(record, config) if not _among(change.key, free)]
        if not decisive:
            return Chosen(record.session_id, config)
        same = session_id is not None or not any(_among(change.key, _IDENTITY) for change in decisive)
        if same and checkpoint is not None:
            refusal = refusal or _refusal(folder, record, decisive)
    if refusal is not None:
        raise refusal
    if session_id is not None:
        raise ConfigError(
            f"session {session_id!r} cannot be resumed: it is not kept here, or another process has it open (see "
            "`edge-agent sessions`)"
        )
    return None


def prepare(
    build: Callable[[EdgeConfig, int | None], W], config: EdgeConfig, folder: LocalFiles | None, resume: Resume | None
) -> tuple[W, StoredSession | None]:
    """Build the experiment of a run, and open the session that it continues, if any. Blocks.

    build: makes the experiment, with the session's number of schedule steps if one continues. Raises ConfigError,
    DataError, ModelError or StorageError if it cannot be trained or resumed.
    """
    chosen = choose_session(folder, lambda _: config, resume.session_id) if resume is not None else None
    stored = None
    if chosen is not None and folder is not None:
        stored = StoredSession.reopen(folder, chosen.session_id, config.checkpoints.keep)
        if stored is None:
            raise ConfigError(f"session {chosen.session_id!r} cannot be resumed: another process has just opened it")
    if stored is None:
        experiment = build(config, None)
        if resume is not None:
            check_not_longer(config, experiment.steps)
            _log.info("no session to resume; a new one begins")
        return experiment, None
    try:
        return _resumed_experiment(build, stored, config, folder), stored
    except BaseException:
        stored.release()
        raise


def _resumed_experiment(
    build: Callable[[EdgeConfig, int | None], W], stored: StoredSession, config: EdgeConfig, folder: LocalFiles | None
) -> W:
    """Build the experiment under `config`, and record that. Raises an IsthmusError if the session cannot continue with it."""
    record = stored.record
    nothing_left = stored.store is not None and not stored.store.names() and stored.finished_step is None
    if record.shared is not None and nothing_left:
        raise StorageError(
            f"session {record.session_id} cannot go on: no checkpoint of it is left here, because each was damaged or held "
            "weights that are no finite numbers; after "
            f"`edge-agent forget {record.session_id}{_flag_for(folder)}` a run begins from the start"
        )
    experiment = build(config, record.schedule_steps)
    steps_are_left = stored.finished_step is None or experiment.steps > record.total_steps
    if record.protocol_version != PROTOCOL_VERSION and steps_are_left:
        raise _of_another_protocol(folder, record)
    if experiment.samples != record.samples:
        raise DataError(
            f"session {record.session_id} was begun with {record.samples} samples to train on, and data.train has "
            f"{experiment.samples} now, so its steps would be others; begin a new run without --resume, with "
            "training.start_from for weights that you have"
        )
    start = config.training.start_from
    if start is not None and experiment.start_digest != record.start_digest:
        raise ConfigError(
            f"training.start_from: {start.path} is not the file that session {record.session_id} was begun with"
        )
    if record.shared is not None and experiment.steps < record.shared[1]:
        raise ConfigError(
            f"training.epochs and training.max_steps make {experiment.steps} steps; session {record.session_id} has done "
            f"{record.shared[1]} already"
        )
    changes = [str(change) for change in _differences(record, config)]
    if (addresses := trainer_addresses(config)) != record.trainer:
        changes.append(f"trainer.address is {addresses} and was {record.trainer}")
    if changes:
        _log.info("the session goes on with other settings", changed="; ".join(changes))
    if config.training.schedule.follows_length and experiment.steps > record.schedule_steps:
        _log.warning(
            "the learning rate stays as it is from this step on, because the schedule keeps the length it began with",
            step=record.schedule_steps,
        )
    stored.change_settings(config, experiment.steps)
    return experiment


def _differences(record: SessionRecord, config: EdgeConfig) -> Iterator[Difference]:
    before, now = _settings(record.configuration), _settings(config)
    for key in dict.fromkeys([*before, *now]):
        if before.get(key) != now.get(key):
            yield Difference(key, before.get(key), now.get(key))


def _settings(config: EdgeConfig) -> dict[str, Any]:
    """List the settings that decide the result, by dotted key."""
    settings = {key: value for section in _DECISIVE for key, value in _leaves(section, getattr(config, section))}
    return settings | {"deployment.staleness_correction": config.staleness_correction}


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        for name, field in value:
            yield from _leaves(f"{key}.{name}", field)
    else:
        yield key, value.absolute() if isinstance(value, Path) else value  # in the form of the record


def _among(key: str, keys: set[str]) -> bool:
    return any(key == known or key.startswith(known + ".") for known in keys)


def _refusal(folder: LocalFiles | None, record: SessionRecord, decisive: list[Difference]) -> ConfigError:
    moving = " (`edge-agent pin` changes the deployment of a running one)" if _is_deployment(decisive) else ""
    return ConfigError(
        f"session {record.session_id} cannot go on with other settings, which would decide another result{moving}: "
        f"{'; '.join(map(str, decisive))}; put them back, or name no --config and have all settings from its record; or "
        f"give it up: after `edge-agent forget {record.session_id}{_flag_for(folder)}` a run begins from the start"
    )


def _of_another_protocol(folder: LocalFiles | None, record: SessionRecord) -> ConfigError:
    spoken = "an older protocol" if record.protocol_version == NO_VERSION else f"protocol {record.protocol_version}"
    return ConfigError(
        f"session {record.session_id} was begun under {spoken}, and this agent speaks {PROTOCOL_VERSION}, by which a step may "
        "have another result; go on with the version of Isthmus that began it, or give it up: after "
        f"`edge-agent forget {record.session_id}{_flag_for(folder)}` a run begins from the start"
    )


def _flag_for(folder: LocalFiles | None) -> str:
    """Return the flag that another shell needs if a service keeps its sessions."""
    return "" if folder is None else f" --set=checkpoints.location={shlex.quote(str(folder.path.parent))}"


def _is_deployment(decisive: list[Difference]) -> bool:
    return any(change.key.startswith("deployment.") for change in decisive)


def _shown(value: Any) -> str:
    return "left out" if value is None else toml_value(value)
