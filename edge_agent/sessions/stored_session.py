"""The agent's sessions on disk, which outlive its process: a folder for each, with its record, term, checkpoints and a lock.

Once all steps are done, the trained model stays there too, until its results are written at the user's place.

The folder of a finished session is removed, so every session that has one can be resumed. The methods block; a thread
of their own calls them.
"""

import json
from collections.abc import Callable, Collection, Iterator, MutableSequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Self

import structlog
from pydantic import ValidationError

from edge_agent.config import EdgeConfig
from edge_agent.sessions.kills import Kill, forget_kills, kills, last_moments
from edge_agent.sessions.session_record import SessionRecord, recorded
from shared.bounds import is_session_id
from shared.checkpoint import Checkpoint, CheckpointName, CheckpointStore, LocalFiles, SessionFolder, open_files
from shared.errors import ConfigError, StorageError
from shared.files.folder_lock import is_locked, lock_folder

_log = structlog.get_logger(__name__)
GROUP_CHECKPOINTS = 3
"""Newest checkpoints of a group of which its members keep the best weights until then, as many as its trainer keeps."""
_RESULT, _BEST = "result", "best"
"""Names of the folders of the trained model and of the best weights, inside that of their session."""


class StoredSession:
    """A session that this process alone has open. Without a folder nothing of it is stored."""

    def __init__(
        self, record: SessionRecord, files: LocalFiles | None, keep: int, best: LocalFiles | None = None
    ) -> None:
        """best: the folder of the best weights, where nothing else is stored here; see `members_folder`."""
        self.record = record
        self._folder = SessionFolder(files, keep) if files is not None else None
        self.session_term = self._folder.term() if self._folder is not None else 0
        """Term of the last attempt to attach; 0 before the first."""
        self.store = self._folder.checkpoints if self._folder is not None else None
        self._results = _results(files)
        best = best if files is None else files.folder(_BEST)
        self._best = None if best is None else CheckpointStore(best, 1)
        self.group_checkpoint_steps = 1
        """Steps between the checkpoints of a member's group, to which it goes back."""
        self._files = files
        self._lock: IO[bytes] | None = None
        self._whole: set[CheckpointName] = set()
        """Checkpoints that were read once and are whole."""

    def begin(self, lost: Self | None = None) -> None:
        """Begin to store a new session. Raises StorageError; if its record cannot be written, nothing is stored then.

        lost: the session of the same run in whose emptied folder this one goes on.
        """
        try:
            self._write()
        except StorageError:
            with suppress(StorageError):
                self.remove()
            raise
        if lost is not None:
            self._lock, lost._lock = lost._lock, None
        elif not self._take_lock():
            raise StorageError(f"session {self.record.session_id} is open in another process")

    @classmethod
    def reopen(cls, folder: LocalFiles, session_id: str, keep: int) -> Self | None:
        """Open a stored session; None if no record of it is credible, or another process has it open."""
        files = folder.folder(session_id)
        record = _read_record(SessionFolder(files, keep), session_id)
        if record is None:
            return None
        stored = cls(record, files, keep)
        return stored if stored._take_lock() else None

    def next_term(self, above: int = 0) -> int:
        """Increase the session term, beyond `above`, store it and return it. Raises StorageError."""
        term = max(self.session_term, above) + 1
        if self._folder is not None and not self._folder.take_term(term):
            raise StorageError(f"session {self.record.session_id}: another process has attached it meanwhile")
        self.session_term = term
        return term

    def set_shared(self, name: CheckpointName) -> None:
        """Record that both sides have this checkpoint. Raises StorageError."""
        self._change(shared=tuple(name))

    def set_left_out(self, workers: Collection[str]) -> None:
        """Record the trainers without which the session continues. Raises StorageError."""
        self._change(left_out=tuple(sorted(workers)))

    def set_trainer_session(self, worker: str, session_id: str) -> None:
        """Record the id that a trainer has given the session. Raises StorageError."""
        self._change(trainer_sessions={**self.record.trainer_sessions, worker: session_id})

    def forget_trainer_session(self, worker: str) -> None:
        """Record that a trainer has the session no more. Raises StorageError."""
        self._change(
            trainer_sessions={name: kept for name, kept in self.record.trainer_sessions.items() if name != worker}
        )

    def change_settings(self, config: EdgeConfig, total_steps: int) -> None:
        """Record the configuration under which the session continues. Raises StorageError."""
        self._change(config=recorded(config), total_steps=total_steps, is_finished=False)

    @property
    def recall_folder(self) -> Path | None:
        """Return the folder of the features that this device may keep; None where the session has none."""
        return None if self._folder is None else self._folder.recalled

    @property
    def shared(self) -> CheckpointName | None:
        """Return the newest checkpoint that both sides are known to have."""
        return None if self.record.shared is None else CheckpointName(*self.record.shared)

    @property
    def resumable(self) -> bool:
        """Tell whether a process can continue it: from a checkpoint that all workers have had, or from the trained model."""
        return self.shared is not None or self.finished_step is not None

    @property
    def finished_step(self) -> int | None:
        """Return the steps after which the trained model was kept; None if it was not, or cannot be read."""
        return _newest_step(self._results)

    def keep_result(self, steps: int, facts: dict[str, Any], model: bytes) -> None:
        """Keep the trained model until its results are written. facts: its figures, as JSON. Raises StorageError."""
        if self._results is not None:
            self._results.save(CheckpointName(0, steps), facts, model)
            self._results.prune()

    def keep_best(self, step: int, weights: bytes, best_at: Callable[[int], int | None]) -> None:
        """Keep the weights of the best evaluation so far, and those that were the best at each checkpoint. Raises StorageError.

        best_at: returns the step of the best evaluation of those until a step.
        """
        if self._best is None:
            return
        self._best.save(CheckpointName(0, step), {}, weights)
        needed = {step, *map(best_at, self._earlier_steps(step))}
        self._best.prune([CheckpointName(0, each) for each in needed if each is not None])

    def forget_best(self, after: int) -> None:
        """Forget the best weights of later steps than this one, which come once more. Raises StorageError."""
        if self._best is not None:
            for name in [name for name in self._best.names() if name.step > after]:
                self._best.remove(name)

    def _earlier_steps(self, step: int) -> list[int]:
        """List the steps to which the run may go back."""
        if self.store is not None:
            return [name.step for name in self.store.names()]
        every = self.group_checkpoint_steps
        return list(range(max(0, step - step % every - GROUP_CHECKPOINTS * every), step, every))

    def best(self, step: int) -> bytes:
        """Return the weights that were kept of a step. Raises StorageError if they are not there, or not whole."""
        if self._best is None:
            raise StorageError("without a folder no weights are kept")
        return self._best.load(CheckpointName(0, step)).data

    def total_bytes(self) -> int:
        """Sum the bytes of its files. Raises StorageError."""
        beside = [store.files for store in (self._results, self._best) if store is not None]
        if self.recall_folder is not None:
            beside.append(LocalFiles(self.recall_folder))
        own_bytes = 0 if self._folder is None else self._folder.total_bytes()
        return own_bytes + sum(sum(files.sizes().values()) for files in beside)

    def result(self) -> Checkpoint | None:
        """Return the trained model that was kept; None if there is no whole one."""
        if self._results is None or (steps := self.finished_step) is None:
            return None
        name = CheckpointName(0, steps)
        return self._results.load(name) if self._results.is_whole(name) else None

    def checkpoints(self) -> list[CheckpointName]:
        """List the whole checkpoints, the newest first. One that was found whole is not read again. Raises StorageError."""
        if self.store is None:
            return []
        self._whole = {name for name in self.store.names() if name in self._whole or self.store.is_whole(name)}
        return sorted(self._whole, reverse=True)

    def drop_damaged(self, name: CheckpointName, failure: StorageError) -> None:
        """Log why a checkpoint cannot be read, and remove it. Raises StorageError."""
        _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
        self.remove_damaged(name)

    def remove_damaged(self, name: CheckpointName) -> None:
        """Remove a checkpoint that cannot be used, so that an older one counts. Raises StorageError."""
        self._whole.discard(name)
        if self.store is not None:
            self.store.remove(name)

    def kills(self) -> list[Kill]:
        """See `kills`: of the processes before this one."""
        return [] if self._files is None else kills(self._files.path)

    def forget_kills(self) -> None:
        """Count no kill before this moment."""
        if self._files is not None:
            forget_kills(self._files.path)

    def last_moments(self, before: Kill | None) -> AbstractContextManager[MutableSequence[int]]:
        """Keep the numbers of this process for the next one, while the body runs. before: the kill of the last one."""
        return nullcontext([0, 0]) if self._files is None else last_moments(self._files.path, before)

    def release(self) -> None:
        """Let other processes open the session."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def finish(self) -> None:
        """Keep what a longer run goes on from, of all finished sessions for this one alone, and release it. Raises
        StorageError.

        Its result is written, so the trained model is not needed any more.
        """
        assert self._files is not None, "a checkpoint of it is shared"
        if self._results is not None:
            self._results.files.clear()
        self._change(is_finished=True)
        self.release()
        folder = LocalFiles(self._files.path.parent)
        for record, _checkpoint, is_open in list(stored_sessions(folder)):
            if record.is_finished and not is_open and record.session_id != self.record.session_id:
                forget_session(folder, record.session_id)

    def remove(self) -> None:
        """Remove all data of the session, because it is finished. Raises StorageError."""
        if self._folder is not None:
            self._folder.remove()
        self.release()

    def empty(self) -> None:
        """Remove all data of a lost session whose run begins again, but for its record and the notes of a kill: a process
        that is killed before the next session is stored can be told of. Raises StorageError."""
        if self._folder is not None:
            self._folder.empty()

    def remove_best(self) -> None:
        """Remove the best weights of a member that has its results. Raises StorageError."""
        if self._folder is None and self._best is not None:
            self._best.files.clear()

    def _change(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        self._write()

    def _write(self) -> None:
        if self._folder is not None:
            self._folder.write(self.record.model_dump(mode="json"))

    def _take_lock(self) -> bool:
        if self._files is None:
            return True
        self._lock = lock_folder(self._files.path)
        return self._lock is not None


def _results(files: LocalFiles | None) -> CheckpointStore | None:
    return None if files is None else CheckpointStore(files.folder(_RESULT), 1)


def _newest_step(results: CheckpointStore | None) -> int | None:
    try:
        return None if results is None else next((name.step for name in results.names()), None)
    except StorageError:
        return None


def sessions_folder(config: EdgeConfig) -> LocalFiles | None:
    """Return the folder of this agent's sessions; None if it keeps none. Raises ConfigError."""
    location = config.checkpoints.location
    if location == "none" or config.member is not None:  # the trainer keeps all that a group's member needs
        return None
    files = open_files(location, "checkpoints.location")
    if not isinstance(files, LocalFiles):
        raise ConfigError(
            f"checkpoints.location is {location!r}; an agent keeps its sessions in a folder of its machine"
        )
    return files.folder("edge-agent")


def members_folder(config: EdgeConfig) -> LocalFiles | None:
    """Return the folder of the best weights of a member of a group; None for one that keeps none. Raises ConfigError."""
    if (group := config.member) is None or config.training.keep_best is None:
        return None
    files = open_files(config.checkpoints.location, "checkpoints.location")
    assert isinstance(files, LocalFiles), "check_followed has seen to it"
    return files.folder("edge-agent-members").folder(f"{group.name}-{group.rank}")


def stored_sessions(folder: LocalFiles | None) -> Iterator[tuple[SessionRecord, CheckpointName | None, bool]]:
    """Yield every stored session: its record, its newest checkpoint, and whether a process has it open."""
    for session_id in _stored_ids(folder):
        assert folder is not None
        files = folder.folder(session_id)
        stored = SessionFolder(files, 1)
        if (record := _read_record(stored, session_id)) is not None:
            names = [*stored.checkpoints.names(), *CheckpointStore(files.folder(_RESULT), 1).names()]
            yield record, max(names, default=None), is_locked(files.path)


def forget_session(folder: LocalFiles | None, session_id: str) -> None:
    """Remove all data of a session.

    Raises ConfigError if it has none or a process has it open, and StorageError.
    """
    if folder is None or session_id not in _stored_ids(folder):
        raise ConfigError(f"nothing is kept of a session {session_id!r} here (see `edge-agent sessions`)")
    files = folder.folder(session_id)
    if (lock := lock_folder(files.path)) is None:
        raise ConfigError(f"session {session_id} is open in another process; stop that first")
    with lock:
        SessionFolder(files, 1).remove()


def _stored_ids(folder: LocalFiles | None) -> list[str]:
    """List the sessions that have a folder. A folder of another name is not ours."""
    return [] if folder is None else sorted(name for name in folder.folders() if is_session_id(name))


def _read_record(folder: SessionFolder, session_id: str) -> SessionRecord | None:
    """Read the record in a session's folder; None if there is no credible one."""
    document = folder.read()
    try:
        record = None if document is None else SessionRecord.model_validate_json(json.dumps(document))
    except ValidationError:
        return None
    return record if record is not None and record.session_id == session_id else None
