"""What of the trainer's sessions outlives its process: for each, how it was opened, who attached last, and checkpoints.

Everything is written on a thread of its own. Knows nothing of streams.
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

from shared.checkpoint import Checkpoint, CheckpointName, CheckpointStore, Files, seal, unseal
from shared.errors import StorageError
from shared.model.stage_state import to_bytes
from shared.threads import Worker
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest

_log = structlog.get_logger(__name__)
_SESSION_ID = re.compile(r"[0-9a-f]{32}")
_RECORD = "session.json"


@dataclass(frozen=True, slots=True)
class Record:
    """How a session was opened, by whom, and the highest epoch with which it was attached."""

    request: OpenSessionRequest
    session_epoch: int
    subject: str
    """Whose session it is."""


class Keeper:
    """The records and checkpoints of all sessions; without a folder it keeps nothing and has nothing."""

    def __init__(self, files: Files | None, keep: int, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970."""
        self._files = files
        self._keep = keep
        self._clock = clock
        self.disk = Worker("disk")

    def close(self) -> None:
        """Let what is being written end, and the thread with it."""
        self.disk.close()

    async def keep_record(self, session_id: str, record: Record) -> None:
        """Write down how a session stands; a warning where that fails, for the session itself can go on."""
        document = {
            "request": base64.b64encode(record.request.SerializeToString()).decode(),
            "session_epoch": record.session_epoch,
            "subject": record.subject,
        }
        if (files := self._folder(session_id)) is None:
            return
        try:
            await self.disk.run(files.write, _RECORD, seal(document))
        except StorageError as failure:
            _log.warning("session not kept; it could not be restored", session=session_id, reason=str(failure))

    async def ids(self) -> list[str]:
        """Of the sessions that something is kept of."""
        if self._files is None:
            return []
        return [name for name in await self.disk.run(self._files.folders) if _SESSION_ID.fullmatch(name)]

    async def record(self, session_id: str) -> Record | None:
        """What was kept of a session; None where there is nothing to be believed."""
        if (files := self._folder(session_id)) is None:
            return None
        data = await self.disk.run(files.read, _RECORD)
        document = None if data is None else unseal(data)
        if document is None:
            return None
        try:
            request = OpenSessionRequest.FromString(base64.b64decode(document["request"]))
            return Record(request, int(document["session_epoch"]), str(document["subject"]))
        except (DecodeError, KeyError, TypeError, ValueError, OverflowError):
            return None

    async def save(
        self,
        session_id: str,
        name: CheckpointName,
        facts: dict[str, Any],
        state: dict[str, Tensor],
        pinned: Collection[CheckpointName],
    ) -> bool:
        """Write a checkpoint and prune older ones but those pinned; whether it is on disk. A warning says why it is not."""
        if (store := self._store(session_id)) is None:
            return False

        def write() -> None:
            store.save(name, facts, to_bytes(state))
            store.prune(pinned)

        try:
            await self.disk.run(write)
        except StorageError as failure:
            _log.warning("checkpoint not written", session=session_id, checkpoint=str(name), reason=str(failure))
            return False
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

    async def forget_abandoned(self, after_seconds: float, is_live: Callable[[str], bool]) -> None:
        """Remove all sessions that are not live and of which nothing was written for so long; a warning where that fails.

        is_live: asked on the event loop. A session that comes back while it is judged waits its turn on the disk's thread.
        """
        try:
            kept = [] if self._files is None else await self.disk.run(self._files.folders)
        except StorageError as failure:
            _log.warning("kept sessions cannot be listed", reason=str(failure))
            return
        for session_id in kept:
            files = self._folder(session_id)
            if files is not None and not is_live(session_id):
                try:
                    await self.disk.run(self._forget_if_abandoned, session_id, files, after_seconds)
                except StorageError as failure:
                    _log.warning("session not removed from disk", session=session_id, reason=str(failure))

    def _forget_if_abandoned(self, session_id: str, files: Files, after_seconds: float) -> None:
        written_seconds = files.written_seconds()
        if written_seconds is not None and self._clock() - written_seconds > after_seconds:
            files.clear()
            _log.info("abandoned session removed from disk", session=session_id)

    def _store(self, session_id: str) -> CheckpointStore | None:
        files = self._folder(session_id)
        return None if files is None else CheckpointStore(files, self._keep)

    def _folder(self, session_id: str) -> Files | None:
        """None where nothing is kept, and for what is no id of ours: a peer's word must not name a folder elsewhere."""
        if self._files is None or not _SESSION_ID.fullmatch(session_id):
            return None
        return self._files.folder(session_id)
