"""What of the trainer's sessions outlives its process: for each, how it was opened, who attached last, and checkpoints.

Everything is read and written on a thread of its own. Knows nothing of streams.
"""

import base64
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from torch import Tensor

from cloud_trainer.sessions.stored_index import StoredEntry, StoredIndex
from shared.checkpoint import Checkpoint, CheckpointName, CheckpointStore, Files, seal, unseal
from shared.concurrency.threads import Worker
from shared.errors import StorageError
from shared.training.stage_state import to_bytes
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest

_log = structlog.get_logger(__name__)
_SESSION_ID = re.compile(r"[0-9a-f]{32}")
_RECORD = "session.json"
_EPOCH = re.compile(r"epoch-(\d{1,20})", re.ASCII)
"""An empty file for the session epoch of whoever attached last: it is created, never written to, so that of two trainers
on one store, or two agents with one epoch, one gets it."""


@dataclass(frozen=True, slots=True)
class Record:
    """How a session was opened, by whom, and the highest epoch with which it was attached."""

    request: OpenSessionRequest
    session_epoch: int
    subject: str
    """Whose session it is."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that is kept for one subject."""

    sessions: int
    kept_bytes: int


class SessionStore:
    """The records and checkpoints of all sessions; without a folder it keeps nothing and has nothing."""

    def __init__(self, files: Files | None, keep: int, quota: Quota, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970."""
        self._files = files
        self._keep = keep
        self._quota = quota
        self._clock = clock
        self._index = StoredIndex()
        self._learned = False
        self.disk = Worker("disk")

    def close(self) -> None:
        """Let what is being written end, and the thread with it."""
        self.disk.close()

    async def make_room(self, subject: str, is_live: Callable[[str], bool]) -> bool:
        """Whether one more session of a subject can be kept. Those that nobody can go on with give their place up first.

        is_live: whether a session is in memory, or on its way there. Raises StorageError.
        """
        if not self._learned:
            await self.learn()
        if self._index.count(subject) < self._quota.sessions:
            return True
        for session_id in self._index.useless(subject):
            if not is_live(session_id):
                await self.forget(session_id)
        return self._index.count(subject) < self._quota.sessions

    async def keep_record(self, session_id: str, record: Record) -> None:
        """Write down how a session was opened; a warning where that fails, for the session itself can go on."""
        if (files := self._folder(session_id)) is None:
            return
        self._index.put(session_id, StoredEntry(record.subject))
        try:
            await self.disk.run(_write_record, files, record)
        except StorageError as failure:
            _log.warning("session not kept; it could not be restored", session=session_id, reason=str(failure))

    async def fence(self, session_id: str, record: Record, session_epoch: int) -> bool:
        """Keep that a session is attached with this epoch, for good; whether nobody has attached it with this or a higher one.

        Raises StorageError where that cannot be written.
        """
        if (files := self._folder(session_id)) is None:
            return True
        if not await self.disk.run(_fence, files, record, session_epoch):
            return False
        await self._learn_of(session_id, files)  # another trainer may have opened it, on the same store
        return True

    async def listed(self, sees: Callable[[str], bool]) -> dict[str, tuple[Record, list[CheckpointName]]]:
        """What is kept of the sessions whose subject may be seen, by id. Raises StorageError."""
        await self.learn()
        found = {}
        for session_id in self._index.seen_by(sees):
            if (record := await self.record(session_id)) is not None:
                found[session_id] = record, await self.names(session_id)
        return found

    async def learn(self) -> None:
        """Find out which sessions are kept. Raises StorageError."""
        if self._files is None:
            return
        known = self._index.session_ids  # before the list: what is opened while it is made is not on it
        found = {name for name in await self.disk.run(self._files.folders) if _SESSION_ID.fullmatch(name)}
        for gone in known - found:
            self._index.remove(gone)
        for session_id in found:
            if (files := self._folder(session_id)) is not None:
                await self._learn_of(session_id, files)
        self._learned = True

    async def _learn_of(self, session_id: str, files: Files) -> None:
        if session_id in self._index:
            return
        entry = await self.disk.run(self._entry, files)
        if entry is not None and session_id not in self._index:
            self._index.put(session_id, entry)

    def _entry(self, files: Files) -> StoredEntry | None:
        record = _read_record(files)
        if record is None:
            return None
        return StoredEntry(record.subject, files.total_bytes(), bool(CheckpointStore(files, self._keep).names()))

    async def record(self, session_id: str) -> Record | None:
        """What was kept of a session; None where there is nothing to be believed."""
        files = self._folder(session_id)
        return None if files is None else await self.disk.run(_read_record, files)

    async def save(
        self,
        session_id: str,
        name: CheckpointName,
        facts: dict[str, Any],
        state: dict[str, Tensor],
        pinned: Collection[CheckpointName],
    ) -> bool:
        """Write a checkpoint and prune older ones but those pinned; whether it is on disk. A warning says why it is not."""
        files, store = self._folder(session_id), self._store(session_id)
        if files is None or store is None:
            return False
        subject = self._index.subject(session_id) or ""
        room = self._quota.kept_bytes - self._index.total_bytes(subject)

        def write() -> int:
            data = to_bytes(state)
            if len(data) > room:
                raise StorageError(
                    f"it has {len(data)} bytes, and {max(room, 0)} are left of what is kept for one subject "
                    "(checkpoints.max_bytes_per_subject)"
                )
            store.save(name, facts, data)
            store.prune(pinned)
            return files.total_bytes()

        try:
            kept_bytes = await self.disk.run(write)
        except StorageError as failure:
            _log.warning("checkpoint not written", session=session_id, checkpoint=str(name), reason=str(failure))
            return False
        self._index.put(session_id, StoredEntry(subject, kept_bytes, resumable=True))
        _log.info("checkpoint written", session=session_id, checkpoint=str(name))
        return True

    async def names(self, session_id: str) -> list[CheckpointName]:
        """The checkpoints of a session, the newest first."""
        store = self._store(session_id)
        return [] if store is None else await self.disk.run(store.names)

    async def load(self, session_id: str, name: CheckpointName) -> Checkpoint:
        """Raises StorageError when it is damaged, or not there."""
        store = self._store(session_id)
        if store is None:
            raise StorageError(f"checkpoint {name} of session {session_id[:40]!r} is not kept")
        return await self.disk.run(store.load, name)

    async def forget(self, session_id: str) -> None:
        """Remove all that was kept of a session."""
        if (files := self._folder(session_id)) is None:
            return
        try:
            await self.disk.run(files.clear)
        except StorageError as failure:
            _log.warning("session not removed from disk", session=session_id, reason=str(failure))
        else:
            self._index.remove(session_id)

    async def forget_abandoned(self, after_seconds: float, is_live: Callable[[str], bool]) -> None:
        """Remove all sessions that are not live and of which nothing was written for so long; a warning where that fails.

        is_live: asked on the event loop. A session that comes back while it is judged waits its turn on the disk's thread.
        """
        try:
            await self.learn()
            kept = [] if self._files is None else await self.disk.run(self._files.folders)
        except StorageError as failure:
            _log.warning("kept sessions cannot be listed", reason=str(failure))
            return
        for session_id in kept:
            files = self._folder(session_id)
            if files is not None and not is_live(session_id):
                try:
                    if await self.disk.run(self._forget_if_abandoned, session_id, files, after_seconds):
                        self._index.remove(session_id)
                except StorageError as failure:
                    _log.warning("session not removed from disk", session=session_id, reason=str(failure))

    def _forget_if_abandoned(self, session_id: str, files: Files, after_seconds: float) -> bool:
        written_seconds = files.written_seconds()
        if written_seconds is None or self._clock() - written_seconds <= after_seconds:
            return False
        files.clear()
        _log.info("abandoned session removed from disk", session=session_id)
        return True

    def _store(self, session_id: str) -> CheckpointStore | None:
        files = self._folder(session_id)
        return None if files is None else CheckpointStore(files, self._keep)

    def _folder(self, session_id: str) -> Files | None:
        """None where nothing is kept, and for what is no id of ours: a peer's word must not name a folder elsewhere."""
        if self._files is None or not _SESSION_ID.fullmatch(session_id):
            return None
        return self._files.folder(session_id)


def _write_record(files: Files, record: Record) -> None:
    request = base64.b64encode(record.request.SerializeToString()).decode()
    files.write(_RECORD, seal({"request": request, "subject": record.subject}))


def _read_record(files: Files) -> Record | None:
    data = files.read(_RECORD)
    document = None if data is None else unseal(data)
    if document is None:
        return None
    try:
        request = OpenSessionRequest.FromString(base64.b64decode(document["request"]))
        return Record(request, max(_epochs(files), default=0), str(document["subject"]))
    except (DecodeError, KeyError, TypeError, ValueError):
        return None


def _epochs(files: Files) -> list[int]:
    return [int(match[1]) for name in files.names() if (match := _EPOCH.fullmatch(name)) is not None]


def _fence(files: Files, record: Record, session_epoch: int) -> bool:
    if files.read(_RECORD) is None:  # it could not be written when the session was opened
        _write_record(files, record)
    if not files.create(f"epoch-{session_epoch}", b""):
        return False
    others = [epoch for epoch in _epochs(files) if epoch != session_epoch]
    if any(epoch > session_epoch for epoch in others):
        return False
    for epoch in others:
        files.remove(f"epoch-{epoch}")
    return True
