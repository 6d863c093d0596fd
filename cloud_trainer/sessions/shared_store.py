"""Several trainers on one store: the folders that each holds, to do the others no harm, and the parts that the others wrote.

Each trainer writes in the folder of its own name. It holds the folder of a session from before its first write until the
session leaves memory. The methods block, and the store's thread calls them.
"""

from collections.abc import Callable, Collection
from typing import Any

import structlog

from cloud_trainer.sessions.opened_model import run_of
from cloud_trainer.sessions.stored_sessions import SessionOpening, read_record
from shared.checkpoint import MAX_NAMED, CheckpointName, CheckpointStore, Files, Held, SessionFolder
from shared.errors import StorageError

_log = structlog.get_logger(__name__)
_OWNED = "owned"


class HeldFolders:
    """The folders that this process holds, by session."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._held

    def hold(self, session_id: str, files: Files) -> None:
        """Hold the folder of a session, unless another process does. A failure is only a warning: training does not need it."""
        if session_id in self._held:
            return
        try:
            held = files.hold()
        except StorageError as failure:
            _log.warning("session not held; other trainers take it for unused", session=session_id, reason=str(failure))
            return
        if held is not None:
            self._held[session_id] = held

    def let_go(self, session_id: str) -> None:
        """Release the folder of a session. If this process does not hold it, nothing happens."""
        if (held := self._held.pop(session_id, None)) is not None:
            try:
                held.let_go()
            except StorageError as failure:
                _log.warning("session not let go; others take it for used", session=session_id, reason=str(failure))

    def elsewhere(self, session_id: str, files: Files) -> bool:
        """Tell whether another live process has the session. Raises StorageError."""
        return session_id not in self._held and files.is_held()

    def renew(self, is_live: Callable[[str], bool]) -> None:
        """Show that this process lives, and release the folders of sessions that left its memory."""
        for session_id, held in list(self._held.items()):
            if not is_live(session_id):
                self.let_go(session_id)
                continue
            try:
                held.renew()
            except StorageError as failure:
                _log.warning("session not held", session=session_id, reason=str(failure))

    def close(self) -> None:
        """Release all folders."""
        for session_id in list(self._held):
            self.let_go(session_id)


def facts_of_part(owned: Collection[int]) -> dict[str, Any]:
    """Return the facts of a trainer's part: the blocks that it updates. Of others that it shares, their owner has the state."""
    return {_OWNED: sorted(owned)}


class OtherParts:
    """The parts of checkpoints that other trainers have written of a run, by the session of this trainer that may use them."""

    def __init__(self, location: Files | None, own_name: str) -> None:
        """location: the folder that has one for each trainer; None if nothing is stored."""
        self._location = location
        self._own_name = own_name
        self._stores: dict[str, list[CheckpointStore]] = {}

    def learn(self, session_id: str, record: SessionOpening, others: Collection[str]) -> None:
        """Find the folders of a run's sessions at other trainers. Those of another subject or run count as missing.

        Replaces what was known of the session. record: of the session here. Raises StorageError.
        """
        self.forget(session_id)
        if self._location is None or not others:
            return
        run_id = run_of(record.request, session_id)
        found = self._stores[session_id] = []
        for trainer in self._location.folders():
            if trainer == self._own_name:
                continue
            for other in others:
                folder = SessionFolder(self._location.folder(trainer).folder(other), keep=1)
                of_other = read_record(folder)
                if of_other is not None and (of_other.subject, run_of(of_other.request, other)) == (
                    record.subject,
                    run_id,
                ):
                    found.append(folder.checkpoints)

    def forget(self, session_id: str) -> None:
        """Forget the folders of a session. Nothing is removed."""
        self._stores.pop(session_id, None)

    def blocks(self, session_id: str) -> dict[CheckpointName, dict[int, CheckpointStore]]:
        """Return the stores that have a block of a checkpoint as its owner wrote it. They may be damaged."""
        found: dict[CheckpointName, dict[int, CheckpointStore]] = {}
        for store in self._stores.get(session_id, ()):
            try:
                names = store.names()[:MAX_NAMED]
            except StorageError as failure:
                _log.warning("another trainer's checkpoints not found", session=session_id, reason=str(failure))
                continue
            for name in names:
                try:
                    found.setdefault(name, {}).update(dict.fromkeys(_owned(store, name), store))
                except StorageError as failure:
                    _log.warning("another trainer's checkpoint not read", session=session_id, reason=str(failure))
        return {name: blocks for name, blocks in found.items() if blocks}


NOTHING = OtherParts(None, "")
"""The parts on a store that no other trainer uses."""


def _owned(store: CheckpointStore, name: CheckpointName) -> list[int]:
    """List the blocks that a part names as its trainer's own. Raises StorageError if it is damaged."""
    named = store.facts(name).get(_OWNED, [])
    return [block for block in named if isinstance(block, int)] if isinstance(named, list) else []
