"""Parts of checkpoints that other trainers on one store with this one have written of a run: read, and never written.

Each trainer writes in the folder of its own name. The methods block, and the store's thread calls them.
"""

from collections.abc import Collection
from typing import Any

import structlog

from cloud_trainer.sessions.building import run_of
from cloud_trainer.sessions.stored_record import SessionOpening, read_record
from shared.checkpoint import MAX_NAMED, CheckpointName, CheckpointStore, Files, SessionFolder
from shared.errors import StorageError

_log = structlog.get_logger(__name__)
_OWNED = "owned"


def facts_of_part(owned: Collection[int]) -> dict[str, Any]:
    """Return the facts of a trainer's part: the blocks that it updates. Of others that it shares, their owner has the state."""
    return {_OWNED: sorted(owned)}


class OtherParts:
    """The parts of other trainers, by the session of this trainer that may use them."""

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
