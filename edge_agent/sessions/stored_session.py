"""What of the agent's sessions outlives its process: a folder for each, with its record, its checkpoints and a lock.

A finished session's folder is removed, so each that is there can be resumed. Its methods block; a thread of their own
calls them.
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

from pydantic import BaseModel, JsonValue, SecretStr, ValidationError, model_validator

from edge_agent.config import EdgeConfig
from edge_agent.experiment.building import Experiment
from shared.checkpoint import CheckpointName, LocalFiles, open_files
from shared.config import Section
from shared.errors import ConfigError, StorageError
from shared.files.private_files import open_file
from shared.runtime import SessionFolder

_LOCK = "lock"
_LOCK_FORMAT = "hhqqi"
"""The fields of C's struct flock: type, whence, start, length, process."""
_WHOLE_FILE = struct.pack(_LOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class SessionRecord(Section):
    """One session, as `edge-agent sessions` shows it."""

    session_id: str
    config: dict[str, JsonValue]
    """The whole configuration that it goes on with, but for secrets."""
    samples: int
    """To train on."""
    schedule_steps: int
    """The length of the training as the schedule of the learning rate sees it, on both sides and for good."""
    start_digest: str | None
    """The digest of the file that the first weights are from (training.start_from)."""
    trainer: str
    model: str
    total_steps: int
    began: str
    """Date and time."""
    shared: tuple[int, int] | None = None
    """The newest checkpoint that both sides are known to have: lineage and step."""

    @property
    def configuration(self) -> EdgeConfig:
        """`config` as it was read."""
        return EdgeConfig.model_validate_json(json.dumps(self.config))

    @model_validator(mode="after")
    def _config_is_one(self) -> Self:
        EdgeConfig.model_validate_json(json.dumps(self.config))
        return self

    @classmethod
    def begun_now(cls, session_id: str, experiment: Experiment) -> Self:
        """The record of a session that was just opened."""
        config = experiment.config
        return cls(
            session_id=session_id,
            config=_recorded(config),
            samples=experiment.samples,
            schedule_steps=experiment.recipe.total_steps,
            start_digest=experiment.start_digest,
            trainer=config.only_trainer.address,
            model=config.model.factory,
            total_steps=experiment.steps,
            began=datetime.now(UTC).isoformat(timespec="microseconds"),
        )


def _recorded(value: Any) -> Any:
    """A configuration as JSON that means the same in another folder; nothing that is secret is in it."""
    if isinstance(value, BaseModel):
        return {name: _recorded(field) for name, field in value if not isinstance(field, SecretStr)}
    if isinstance(value, Path):
        return str(value.absolute())
    return [_recorded(item) for item in value] if isinstance(value, tuple) else value


class StoredSession:
    """A session of this process; nobody else has it open. Without a folder nothing is stored."""

    def __init__(self, record: SessionRecord, files: LocalFiles | None, keep: int) -> None:
        self.record = record
        self._folder = SessionFolder(files, keep) if files is not None else None
        self.session_term = self._folder.term() if self._folder is not None else 0
        """The term of the last attempt to attach; 0 before the first."""
        self.store = self._folder.checkpoints if self._folder is not None else None
        self._files = files
        self._lock: IO[bytes] | None = None
        self._whole: set[CheckpointName] = set()

    def begin(self) -> None:
        """Store a new session from now on. Raises StorageError, and nothing is stored then."""
        try:
            self._write()
        except StorageError:
            with suppress(StorageError):
                self.remove()
            raise
        if not self._take_lock():
            raise StorageError(f"session {self.record.session_id} is open in another process")

    @classmethod
    def reopen(cls, folder: LocalFiles, session_id: str, keep: int) -> Self | None:
        """A stored session; None where none can be believed, or another process has it."""
        files = folder.folder(session_id)
        record = _record(SessionFolder(files, keep))
        if record is None:
            return None
        stored = cls(record, files, keep)
        return stored if stored._take_lock() else None

    def next_term(self) -> int:
        """Count the session term up; on disk when this returns. Raises StorageError."""
        term = self.session_term + 1
        if self._folder is not None and not self._folder.take_term(term):
            raise StorageError(f"session {self.record.session_id}: another process has attached it meanwhile")
        self.session_term = term
        return term

    def set_shared(self, name: CheckpointName) -> None:
        """Both sides have this checkpoint. Raises StorageError."""
        self._change(shared=tuple(name))

    def change_settings(self, config: EdgeConfig, total_steps: int) -> None:
        """Record the configuration that the session goes on with. Raises StorageError."""
        self._change(config=_recorded(config), total_steps=total_steps)

    @property
    def shared(self) -> CheckpointName | None:
        """The newest checkpoint that both sides are known to have."""
        return None if self.record.shared is None else CheckpointName(*self.record.shared)

    def checkpoints(self) -> list[CheckpointName]:
        """Those that are whole, the newest first; what was found whole is not read again."""
        if self.store is None:
            return []
        self._whole = {name for name in self.store.names() if name in self._whole or self.store.is_whole(name)}
        return sorted(self._whole, reverse=True)

    def remove_damaged(self, name: CheckpointName) -> None:
        """Remove a checkpoint that cannot be used after all: an older one counts. Raises StorageError."""
        self._whole.discard(name)
        if self.store is not None:
            self.store.remove(name)

    def release(self) -> None:
        """Let other processes have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """It is finished. Raises StorageError."""
        if self._folder is not None:
            self._folder.remove()
        self.release()

    def _change(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        self._write()

    def _write(self) -> None:
        if self._folder is not None:
            self._folder.write(self.record.model_dump(mode="json"))

    def _take_lock(self) -> bool:
        if self._files is None:
            return True
        self._lock = _locked(self._files.path)
        return self._lock is not None


def sessions_folder(config: EdgeConfig) -> LocalFiles | None:
    """Where this agent keeps its sessions; None where it keeps none. Raises ConfigError."""
    location = config.checkpoints.location
    if location == "none":
        return None
    files = open_files(location, "checkpoints.location")
    if not isinstance(files, LocalFiles):
        raise ConfigError(
            f"checkpoints.location is {location!r}; an agent keeps its sessions in a folder of its machine"
        )
    return files.folder("edge-agent")


def stored_sessions(folder: LocalFiles | None) -> Iterator[tuple[SessionRecord, CheckpointName | None, bool]]:
    """Every stored session: its record, its newest checkpoint, and whether a process has it open."""
    for session_id in sorted(folder.folders()) if folder is not None else []:
        assert folder is not None
        files = folder.folder(session_id)
        stored = SessionFolder(files, 1)
        if (record := _record(stored)) is not None:
            yield record, next(iter(stored.checkpoints.names()), None), _is_locked(files.path)


def forget_session(folder: LocalFiles | None, session_id: str) -> None:
    """Remove all that is stored of a session. Raises ConfigError when nothing is or a process has it open, StorageError."""
    if folder is None or session_id not in folder.folders():
        raise ConfigError(f"nothing is kept of a session {session_id!r} here (see `edge-agent sessions`)")
    files = folder.folder(session_id)
    if (lock := _locked(files.path)) is None:
        raise ConfigError(f"session {session_id} is open in another process; stop that first")
    with lock:
        SessionFolder(files, 1).remove()


def _record(folder: SessionFolder) -> SessionRecord | None:
    document = folder.read()
    try:
        return None if document is None else SessionRecord.model_validate_json(json.dumps(document))
    except ValidationError:
        return None


def _locked(path: Path) -> IO[bytes] | None:
    """A handle that holds the lock of a folder until it is closed, or the process ends; None when another holds it."""
    try:
        handle = os.fdopen(open_file(path / _LOCK, os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as cause:
        raise StorageError(f"{path / _LOCK} cannot be opened: {cause.strerror}") from cause
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        handle.close()
        return None
    os.set_inheritable(handle.fileno(), False)
    return handle


def _is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a folder. It only asks: taking the lock would refuse a process that wants it now."""
    try:
        with (path / _LOCK).open("rb") as handle:
            answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    except FileNotFoundError:
        return False
    except OSError as cause:
        raise StorageError(f"{path / _LOCK} cannot be opened: {cause.strerror}") from cause
    found: int = struct.unpack(_LOCK_FORMAT, answer)[0]
    return found != fcntl.F_UNLCK
