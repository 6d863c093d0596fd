"""What of the trainer's sessions outlives its process: of each, how it was opened, the last term, and its checkpoints.

It also bounds what is stored for a subject. A thread of its own reads and writes. Knows nothing of streams.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from torch import Tensor

from cloud_trainer.sessions.building import run_of
from cloud_trainer.sessions.held_folders import HeldFolders
from cloud_trainer.sessions.stored_index import StoredEntry, StoredIndex
from shared.bounds import is_session_id
from shared.checkpoint import CheckpointName, Files, SessionFolder
from shared.concurrency.threads import Worker
from shared.errors import StorageError
from shared.runtime.checkpoint_states import load_block, load_states
from shared.training.block_state import BlockTensors
from shared.training.held_state import to_bytes
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """How a session was opened, by whom, and the highest term with which it was attached."""

    request: OpenSessionRequest
    session_term: int
    subject: str
    """Whose session it is."""

    @property
    def document(self) -> dict[str, str]:
        """What its file holds; the term is a file of its own."""
        return {"request": base64.b64encode(self.request.SerializeToString()).decode(), "subject": self.subject}


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that is stored for one subject."""

    sessions: int
    stored_bytes: int


class SessionStore:
    """The records and checkpoints of all sessions. Without a folder it keeps nothing."""

    def __init__(self, files: Files | None, keep: int, quota: Quota, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970."""
        self._files = files
        self._keep = keep
        self._quota = quota
        self._clock = clock
        self._index = StoredIndex()
        self._held = HeldFolders()
        self._reserved: dict[str, str] = {}
        """The subject of each session that is being opened."""
        self._learned = False
        """Whether the index knows what was stored before this process began."""
        self._claiming = asyncio.Lock()
        """Held from counting what will be stored until it is: who writes second counts what the first has written."""
        self.disk = Worker("disk")

    def close(self) -> None:
        """Wait until what is being written is written, let the sessions go, and end the thread."""
        self.disk.close()
        self._held.close()

    async def reserve_room(self, session_id: str, subject: str, is_live: Callable[[str], bool]) -> bool:
        """Reserve room for one more session of a subject until `release_room`; False where the subject has as many as it may.

        Sessions that nobody can resume give their room up first. is_live: whether a session is in memory, or on its way
        there. Raises StorageError.
        """
        if not self._learned:
            await self.learn()
        if len(self._index.seen_by(subject.__eq__)) + len(self._reserved) >= self._quota.sessions:
            await self._look_again(subject)
        if self._taken(subject) >= self._quota.sessions:
            for useless in self._index.useless(subject):
                if not is_live(useless):
                    await self.forget(useless)
        if self._taken(subject) >= self._quota.sessions:
            return False
        self._reserved[session_id] = subject
        return True

    async def _look_again(self, subject: str) -> None:
        """Find out what other trainers on the same store have done since to sessions that this one does not have."""
        for session_id in self._index.seen_by(subject.__eq__):
            ours = session_id in self._held or session_id in self._reserved
            if not ours and (folder := self._folder(session_id)) is not None:
                if (entry := await self.disk.run(self._entry, session_id, folder)) is None:
                    self._index.remove(session_id)
                else:
                    self._index.put(session_id, entry)

    def release_room(self, session_id: str) -> None:
        """The session is stored by now, or will not be; nothing happens where no room was reserved."""
        self._reserved.pop(session_id, None)

    def _taken(self, subject: str) -> int:
        """How many sessions of a subject are stored or have a reservation."""
        reserved = (name for name, owner in self._reserved.items() if owner == subject and name not in self._index)
        return self._index.count(subject) + sum(1 for _ in reserved)

    async def keep_record(self, session_id: str, record: Record) -> None:
        """Write down how a session was opened. Where that fails it only warns, because the session itself can go on."""
        if (folder := self._folder(session_id)) is None:
            return
        await self.disk.run(self._held.hold, session_id, folder.files)
        self._index.put(session_id, StoredEntry(record.subject))
        try:
            await self.disk.run(folder.write, record.document)
        except StorageError as failure:
            _log.warning("session not kept; it could not be restored", session=session_id, reason=str(failure))

    async def fence(self, session_id: str, record: Record, session_term: int) -> bool:
        """Write down for good that a session is attached with this term; False where it was attached with this or a higher one.

        Raises StorageError where that cannot be written.
        """
        if (folder := self._folder(session_id)) is None:
            return True
        await self.disk.run(self._held.hold, session_id, folder.files)
        if not await self.disk.run(_fence, folder, record, session_term):
            return False
        await self._learn_of(session_id, folder)  # another trainer may have opened it, on the same store
        return True

    async def listed(self, sees: Callable[[str], bool]) -> dict[str, tuple[Record, list[CheckpointName]]]:
        """The records and checkpoints of the sessions whose subject may be seen, by id. Raises StorageError."""
        await self.learn()
        found = {}
        for session_id in self._index.seen_by(sees):
            if (record := await self.record(session_id)) is not None:
                found[session_id] = record, await self.names(session_id)
        return found

    async def learn(self) -> None:
        """Find out which sessions are stored, and put them in the index. Raises StorageError."""
        if self._files is None:
            return
        known = self._index.session_ids  # before the list: what is opened while it is made is not on it
        found = {name for name in await self.disk.run(self._files.folders) if is_session_id(name)}
        for gone in known - found:
            self._index.remove(gone)
        for session_id in found:
            if (folder := self._folder(session_id)) is not None:
                await self._learn_of(session_id, folder)
        self._learned = True

    async def _learn_of(self, session_id: str, folder: SessionFolder) -> None:
        if session_id in self._index:
            return
        entry = await self.disk.run(self._entry, session_id, folder)
        if entry is not None and session_id not in self._index:
            self._index.put(session_id, entry)

    async def is_elsewhere(self, session_id: str) -> bool:
        """Whether another trainer that lives has the session. Raises StorageError."""
        folder = self._folder(session_id)
        return folder is not None and await self.disk.run(self._held.elsewhere, session_id, folder.files)

    async def let_go(self, session_id: str) -> None:
        """The session is no more in this process's memory; another trainer may have it."""
        await self.disk.run(self._held.let_go, session_id)

    async def renew(self, is_live: Callable[[str], bool]) -> None:
        """Show that this process lives and has the sessions for which `is_live` is true; it lets go of others."""
        await self.disk.run(self._held.renew, is_live)

    async def record(self, session_id: str) -> Record | None:
        """The stored record of a session; None where there is none that can be believed."""
        folder = self._folder(session_id)
        return None if folder is None else await self.disk.run(_read_record, folder)

    async def save(
        self,
        session_id: str,
        name: CheckpointName,
        facts: dict[str, Any],
        state: dict[str, Tensor],
        pinned: Collection[CheckpointName],
    ) -> bool:
        """Write a worker's part of a checkpoint, and prune older checkpoints but those pinned; returns whether it is on disk.

        A warning says why not.
        """
        if (folder := self._folder(session_id)) is None:
            return False
        checkpoints = folder.checkpoints

        def write() -> None:
            checkpoints.save(name, facts, data)
            checkpoints.prune(pinned)

        data = await self.disk.run(to_bytes, state)
        try:
            await self._write(session_id, folder, lambda: checkpoints.bytes_after(name, len(data), pinned), write)
        except StorageError as failure:
            _log.warning("checkpoint not written", session=session_id, checkpoint=str(name), reason=str(failure))
            return False
        _log.info("checkpoint written", session=session_id, checkpoint=str(name))
        return True

    async def save_replica(self, session_id: str, name: CheckpointName, block: int, data: bytes) -> None:
        """Write a block of another worker's part of a checkpoint. Raises StorageError."""
        folder = self._kept(session_id)
        checkpoints = folder.checkpoints
        await self._write(
            session_id,
            folder,
            lambda: checkpoints.bytes_with_replica(name, block, len(data)),
            lambda: checkpoints.save_replica(name, block, data),
        )

    async def _write(
        self, session_id: str, folder: SessionFolder, count_after: Callable[[], int], write: Callable[[], None]
    ) -> None:
        """Write what a session may store. count_after: the bytes of its folder then. Raises StorageError."""

        def write_and_count() -> int:
            write()
            return folder.total_bytes()

        async with self._claiming:
            before = self._index.entry(session_id) or StoredEntry("")
            try:
                after_bytes = await self.disk.run(count_after)
                if after_bytes > self._left_bytes(before):
                    await self._look_again(before.subject)
                self._claim(session_id, before, after_bytes)
                stored_bytes = await self.disk.run(write_and_count)
            except StorageError:
                self._index.put(session_id, before)
                raise
            self._index.put(session_id, StoredEntry(before.subject, stored_bytes, resumable=True))

    def _claim(self, session_id: str, before: StoredEntry, after_bytes: int) -> None:
        """Count what will be stored of a session before it is written, so that others find no room that this takes.

        Raises StorageError where it is more than is left.
        """
        left = self._left_bytes(before)
        if after_bytes > left:
            raise StorageError(
                f"with it {after_bytes} bytes would be kept of this session, and {max(left, 0)} are left of what is kept for "
                "one subject (checkpoints.max_bytes_per_subject)"
            )
        claimed = max(after_bytes, before.stored_bytes)
        self._index.put(session_id, StoredEntry(before.subject, claimed, before.resumable))

    def _left_bytes(self, before: StoredEntry) -> int:
        """What one session may take, with all that others of its subject take."""
        return self._quota.stored_bytes - self._index.total_bytes(before.subject) + before.stored_bytes

    async def names(self, session_id: str) -> list[CheckpointName]:
        """The checkpoints of a session, the newest first; they may be damaged. Raises StorageError."""
        folder = self._folder(session_id)
        return [] if folder is None else await self.disk.run(folder.checkpoints.names)

    async def replicas(self, session_id: str) -> dict[CheckpointName, list[int]]:
        """The blocks of other workers' parts that are kept of a session, by checkpoint. Raises StorageError."""
        folder = self._folder(session_id)
        return {} if folder is None else await self.disk.run(folder.checkpoints.replicas)

    async def load(self, session_id: str, name: CheckpointName, blocks: Collection[int]) -> dict[int, BlockTensors]:
        """Read blocks of a checkpoint, and it may be others with them. Raises StorageError where one is damaged or missing."""
        if not blocks:
            return {}
        return await self.disk.run(load_states, self._kept(session_id).checkpoints, name, blocks)

    async def load_block(self, session_id: str, name: CheckpointName, block: int) -> bytes:
        """Read one block of a checkpoint as it travels. Raises StorageError where it is damaged, or not there."""
        return await self.disk.run(load_block, self._kept(session_id).checkpoints, name, block)

    async def forget(self, session_id: str) -> None:
        """Remove all that is stored of a session; a warning where that fails."""
        if (folder := self._folder(session_id)) is None:
            return
        await self.let_go(session_id)
        try:
            await self.disk.run(folder.remove)
        except StorageError as failure:
            _log.warning("session not removed from disk", session=session_id, reason=str(failure))
        else:
            self._index.remove(session_id)

    async def forget_abandoned(self, after_seconds: float, is_live: Callable[[str], bool]) -> None:
        """Remove the sessions that no trainer has and to which nothing was written for so long; a warning where that fails.

        is_live: whether a session is in memory or on its way there; asked on the event loop. What a session that comes back at
        this moment writes waits its turn on the disk's thread.
        """
        try:
            await self.learn()
            session_ids = [] if self._files is None else await self.disk.run(self._files.folders)
        except StorageError as failure:
            _log.warning("kept sessions cannot be listed", reason=str(failure))
            return
        for session_id in session_ids:
            folder = self._folder(session_id)
            if folder is not None and not is_live(session_id):
                try:
                    if await self.disk.run(self._forget_if_abandoned, session_id, folder, after_seconds):
                        self._index.remove(session_id)
                except StorageError as failure:
                    _log.warning("session not removed from disk", session=session_id, reason=str(failure))

    def _forget_if_abandoned(self, session_id: str, folder: SessionFolder, after_seconds: float) -> bool:
        written_at = folder.written_at()
        if written_at is None or self._clock() - written_at <= after_seconds:
            return False
        if self._held.elsewhere(session_id, folder.files):
            return False
        record = _read_record(folder)
        folder.remove()
        run_id = session_id if record is None else run_of(record.request, session_id)
        _log.info("abandoned session removed from disk", session=session_id, run=run_id)
        return True

    def _entry(self, session_id: str, folder: SessionFolder) -> StoredEntry | None:
        """What is stored of a session; None where no record can be believed. Runs on the disk's thread."""
        if (record := _read_record(folder)) is None:
            return None
        resumable, elsewhere = bool(folder.checkpoints.names()), self._held.elsewhere(session_id, folder.files)
        return StoredEntry(record.subject, folder.total_bytes(), resumable, elsewhere)

    def _kept(self, session_id: str) -> SessionFolder:
        """The folder of a session. Raises StorageError where nothing is stored."""
        if (folder := self._folder(session_id)) is None:
            raise StorageError("this trainer keeps no checkpoints (checkpoints.location)")
        return folder

    def _folder(self, session_id: str) -> SessionFolder | None:
        """The folder of a session; None where nothing is stored, and for an id that no trainer gives.

        The id comes from a peer, and must not lead to a folder elsewhere.
        """
        if self._files is None or not is_session_id(session_id):
            return None
        return SessionFolder(self._files.folder(session_id), self._keep)


def _read_record(folder: SessionFolder) -> Record | None:
    document = folder.read()
    if document is None:
        return None
    try:
        request = OpenSessionRequest.FromString(base64.b64decode(document["request"]))
        return Record(request, folder.term(), str(document["subject"]))
    except (DecodeError, KeyError, TypeError, ValueError):
        return None


def _fence(folder: SessionFolder, record: Record, session_term: int) -> bool:
    """See `SessionStore.fence`. Runs on the disk's thread."""
    if folder.read() is None:  # it could not be written when the session was opened
        folder.write(record.document)
    return folder.take_term(session_term)
