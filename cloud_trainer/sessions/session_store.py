"""The sessions on disk, which outlive the trainer's process: the request that opened each, its last term, and its checkpoints.

The store also bounds what a subject may keep. A thread of its own reads and writes. Knows nothing of streams.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from cloud_trainer.sessions.opened_model import run_of
from cloud_trainer.sessions.shared_store import NOTHING, HeldFolders, OtherParts
from cloud_trainer.sessions.stored_sessions import SessionOpening, StoredEntry, StoredIndex, read_record
from shared.bounds import is_session_id
from shared.checkpoint import CheckpointName, CheckpointStore, Files, SessionFolder
from shared.concurrency.threads import WorkerThread
from shared.errors import StorageError
from shared.runtime.checkpoint_states import PartFiles, load_states
from shared.training import state_file
from shared.training.block_state import BlockTensors
from shared.training.held_state import CopiedPart

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one subject's stored sessions."""

    sessions: int
    stored_bytes: int


class SessionStore:
    """The records and checkpoints of all sessions. Without a folder it stores nothing."""

    def __init__(
        self,
        files: Files | None,
        keep: int,
        quota: Quota,
        clock: Callable[[], float] = time.time,
        others: OtherParts = NOTHING,
    ) -> None:
        """files: this trainer's own folder. clock: seconds since 1970. others: what other trainers have on the same store."""
        self._files = files
        self._others = others
        self._keep = keep
        self._quota = quota
        self._clock = clock
        self._index = StoredIndex()
        self._held = HeldFolders()
        self._reserved: dict[str, str] = {}
        """Subject of each session that is being opened."""
        self._learned = False
        """True if the index knows the sessions stored before this process began."""
        self._claiming = asyncio.Lock()
        """Lock held from the count of future bytes until it is recorded: a second writer counts those of the first."""
        self.disk = WorkerThread("disk")

    def close(self) -> None:
        """Wait until current writes are done, release the sessions, and end the thread."""
        self.disk.close()
        self._held.close()

    async def reserve_room(self, session_id: str, subject: str, is_live: Callable[[str], bool]) -> bool:
        """Reserve room for one more session of a subject until `release_room`. False if the subject has reached its limit.

        Sessions that cannot be resumed give up their room first. is_live: True for a session in memory, or on its way
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
        """Find the changes that other trainers on the same store made to sessions that this one does not have."""
        for session_id in self._index.seen_by(subject.__eq__):
            ours = session_id in self._held or session_id in self._reserved
            if not ours and (folder := self._folder(session_id)) is not None:
                if (entry := await self.disk.run(self._entry, session_id, folder)) is None:
                    self._index.remove(session_id)
                else:
                    self._index.put(session_id, entry)

    def release_room(self, session_id: str) -> None:
        """Release the reservation of a session that is stored, or will not be. Without one, nothing happens."""
        self._reserved.pop(session_id, None)

    def _taken(self, subject: str) -> int:
        """Count the sessions of a subject that are stored or have a reservation."""
        reserved = (name for name, owner in self._reserved.items() if owner == subject and name not in self._index)
        return self._index.count(subject) + sum(1 for _ in reserved)

    async def keep_record(self, session_id: str, record: SessionOpening) -> None:
        """Write the record of a session's opening. A failure is only a warning, because the session itself can continue."""
        if (folder := self._folder(session_id)) is None:
            return
        await self.disk.run(self._held.hold, session_id, folder.files)
        self._index.put(session_id, StoredEntry(record.subject))
        try:
            await self.disk.run(folder.write, record.document)
        except StorageError as failure:
            _log.warning("session not kept; it could not be restored", session=session_id, reason=str(failure))

    async def fence(self, session_id: str, record: SessionOpening, session_term: int) -> bool:
        """Store that a session is attached with this term. False if it was attached with this or a higher one.

        Raises StorageError if that cannot be written.
        """
        if (folder := self._folder(session_id)) is None:
            return True
        await self.disk.run(self._held.hold, session_id, folder.files)
        if not await self.disk.run(_fence, folder, record, session_term):
            return False
        await self._learn_of(session_id, folder)  # Another trainer on the same store may have opened it.
        return True

    async def listed(self, sees: Callable[[str], bool]) -> dict[str, tuple[SessionOpening, list[CheckpointName]]]:
        """Return the records and checkpoints of the sessions whose subject may be seen, by id. Raises StorageError."""
        await self.learn()
        found = {}
        for session_id in self._index.seen_by(sees):
            if (record := await self.record(session_id)) is not None:
                found[session_id] = record, await self.names(session_id)
        return found

    async def learn(self) -> None:
        """Find the stored sessions, and put them in the index. Raises StorageError."""
        if self._files is None:
            return
        known = self._index.session_ids  # before the list: it lacks sessions that are opened while it is made
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
        """Tell whether another live trainer has the session. Raises StorageError."""
        folder = self._folder(session_id)
        return folder is not None and await self.disk.run(self._held.elsewhere, session_id, folder.files)

    async def let_go(self, session_id: str) -> None:
        """Release a session that left this process's memory. Another trainer may have it."""
        self._others.forget(session_id)
        await self.disk.run(self._held.let_go, session_id)

    async def renew(self, is_live: Callable[[str], bool]) -> None:
        """Show that this process lives and has the sessions for which `is_live` is true. It releases the others."""
        await self.disk.run(self._held.renew, is_live)

    async def record(self, session_id: str) -> SessionOpening | None:
        """Return the stored record of a session; None if there is no credible one."""
        folder = self._folder(session_id)
        return None if folder is None else await self.disk.run(read_record, folder)

    async def save(
        self,
        session_id: str,
        name: CheckpointName,
        facts: dict[str, Any],
        copied: CopiedPart,
        pinned: Collection[CheckpointName],
    ) -> bool:
        """Write a worker's part of a checkpoint, and prune older checkpoints except pinned ones. Returns whether it is on disk.

        A warning names the reason of a failure.
        """
        if (folder := self._folder(session_id)) is None:
            return False
        checkpoints = folder.checkpoints

        def write() -> None:
            part.save(checkpoints, name, facts)
            checkpoints.prune(pinned)

        try:
            part = await self.disk.run(PartFiles, copied, checkpoints)
            await self._write(
                session_id,
                folder,
                lambda: checkpoints.bytes_after(name, part.bytes, pinned, part.increments.earlier),
                write,
            )
        except StorageError as failure:
            _log.warning("checkpoint not written", session=session_id, checkpoint=str(name), reason=str(failure))
            return False
        _log.info("checkpoint written", session=session_id, checkpoint=str(name))
        return True

    async def save_replica(self, session_id: str, name: CheckpointName, block: int, data: bytes | memoryview) -> None:
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
        """Write data of a session within its quota. count_after: the bytes of its folder afterwards. Raises StorageError."""

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
        """Count the bytes of a session before they are written, so that no other write takes their room.

        Raises StorageError if there is too little.
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
        """Return the bytes that one session may take, given the other sessions of its subject."""
        return self._quota.stored_bytes - self._index.total_bytes(before.subject) + before.stored_bytes

    async def learn_others(self, session_id: str, record: SessionOpening, others: Collection[str]) -> None:
        """Find what other trainers on the same store have of a run, as `OtherParts.learn` does. Raises StorageError."""
        await self.disk.run(self._others.learn, session_id, record, others)

    async def names(self, session_id: str) -> list[CheckpointName]:
        """List the checkpoints of a session, the newest first. They may be damaged. Raises StorageError."""
        folder = self._folder(session_id)
        return [] if folder is None else await self.disk.run(folder.checkpoints.names)

    async def replicas(self, session_id: str) -> dict[CheckpointName, list[int]]:
        """List the readable blocks of other workers' parts of a session, by checkpoint: those that this trainer keeps, and
        those that other trainers have on the same store. Raises StorageError."""
        folder = self._folder(session_id)
        return {} if folder is None else await self.disk.run(self._replicas, session_id, folder.checkpoints)

    def _replicas(self, session_id: str, store: CheckpointStore) -> dict[CheckpointName, list[int]]:
        kept, others = store.replicas(), self._others.blocks(session_id)
        return {name: sorted({*kept.get(name, ()), *others.get(name, ())}) for name in kept.keys() | others.keys()}

    async def load(self, session_id: str, name: CheckpointName, blocks: Collection[int]) -> dict[int, BlockTensors]:
        """Read blocks of a checkpoint, and with `KEPT` the features that it has. Raises StorageError where one is missing."""
        if not blocks:
            return {}
        return await self.disk.run(self._load, session_id, name, blocks)

    def _load(self, session_id: str, name: CheckpointName, blocks: Collection[int]) -> dict[int, BlockTensors]:
        own, others = self._kept(session_id).checkpoints, self._others.blocks(session_id).get(name, {})
        kept = own.replicas().get(name, []) if others else []
        wanted: dict[CheckpointStore, list[int]] = {}
        for block in blocks:
            wanted.setdefault(own if block in kept else others.get(block, own), []).append(block)
        states: dict[int, BlockTensors] = {}
        for store, some in wanted.items():
            found = load_states(store, name, some)
            states.update((block, found[block]) for block in some if block in found)  # of `KEPT` there may be nothing
        return states

    async def load_block(self, session_id: str, name: CheckpointName, block: int) -> bytes:
        """Read one block of a checkpoint in the form that travels. Raises StorageError if it is damaged or missing."""
        return await self.disk.run(lambda: state_file.serialize(self._load(session_id, name, [block])[block]))

    def recall_folder(self, session_id: str) -> Path | None:
        """Return the folder for the features that a session may keep, which goes with the session's; None where it has none on
        this machine."""
        folder = self._folder(session_id)
        return None if folder is None else folder.recalled

    async def forget(self, session_id: str) -> None:
        """Remove all data of a session. A failure is a warning."""
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
        """Remove the sessions that no trainer has and to which nothing was written for so long. A failure is a warning.

        is_live: True for a session in memory or on its way there, asked on the event loop. The writes of a session that
        comes back at this moment wait for their turn on the disk's thread.
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
        written_at = folder.files.written_at()
        if written_at is None or self._clock() - written_at <= after_seconds:
            return False
        if self._held.elsewhere(session_id, folder.files):
            return False
        record = read_record(folder)
        folder.remove()
        run_id = session_id if record is None else run_of(record.request, session_id)
        _log.info("abandoned session removed from disk", session=session_id, run=run_id)
        return True

    def _entry(self, session_id: str, folder: SessionFolder) -> StoredEntry | None:
        """Read the entry of a stored session; None if no record is credible. Runs on the disk's thread."""
        if (record := read_record(folder)) is None:
            return None
        resumable, elsewhere = bool(folder.checkpoints.names()), self._held.elsewhere(session_id, folder.files)
        return StoredEntry(record.subject, folder.total_bytes(), resumable, elsewhere)

    def _kept(self, session_id: str) -> SessionFolder:
        """Return the folder of a session. Raises StorageError if nothing is stored."""
        if (folder := self._folder(session_id)) is None:
            raise StorageError("this trainer keeps no checkpoints (checkpoints.location)")
        return folder

    def _folder(self, session_id: str) -> SessionFolder | None:
        """Return the folder of a session; None if nothing is stored, and for an id that no trainer gives.

        The id comes from a peer, and must not lead to a folder elsewhere.
        """
        if self._files is None or not is_session_id(session_id):
            return None
        return SessionFolder(self._files.folder(session_id), self._keep)


def _fence(folder: SessionFolder, record: SessionOpening, session_term: int) -> bool:
    """Store a term as `SessionStore.fence` says. Runs on the disk's thread."""
    if folder.read() is None:  # The write failed when the session was opened.
        folder.write(record.document)
    return folder.take_term(session_term)
