"""Held folders: the sessions of a store that each process uses, so that several trainers on one store do each other no harm.

A trainer holds the folder of each session from before its first write until the session leaves memory. The methods
block, and the store's thread calls them.
"""

from collections.abc import Callable

import structlog

from shared.checkpoint import Files, Held
from shared.errors import StorageError

_log = structlog.get_logger(__name__)


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
