"""Stored sessions: the record in the folder of each, and an index of all in memory.

A record has the request that opened the session, its owner and its last term. From the index, of owners and sizes, quotas and
lists are computed. A session's subject never changes, so its record is read once.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from shared.checkpoint import SessionFolder
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """The opening of a session: its request, its owner, and the highest term that attached it."""

    request: OpenSessionRequest
    session_term: int
    subject: str
    """Subject that owns the session."""

    @property
    def document(self) -> dict[str, str]:
        """Return the content of its file. The term is a file of its own."""
        return {"request": base64.b64encode(self.request.SerializeToString()).decode(), "subject": self.subject}


def read_record(folder: SessionFolder) -> SessionOpening | None:
    """Read the record in the folder of a session; None if there is no credible one. Blocks. Raises StorageError."""
    document = folder.read()
    if document is None:
        return None
    try:
        request = OpenSessionRequest.FromString(base64.b64decode(document["request"]))
        return SessionOpening(request, folder.term(), str(document["subject"]))
    except (DecodeError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """The facts of one stored session."""

    subject: str
    stored_bytes: int = 0
    resumable: bool = False
    """True if it has a checkpoint. Without one, it cannot be resumed."""
    elsewhere: bool = False
    """True if another live trainer has it. Then it counts there."""


class StoredIndex:
    """The stored sessions by their ids. Used on the event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, StoredEntry] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._entries

    def put(self, session_id: str, entry: StoredEntry) -> None:
        """Note that a session is stored, or that its size has changed."""
        self._entries[session_id] = entry

    def remove(self, session_id: str) -> None:
        """Note that a session is stored no more. If it was not stored, nothing happens."""
        self._entries.pop(session_id, None)

    @property
    def session_ids(self) -> set[str]:
        """Return the stored sessions."""
        return set(self._entries)

    def seen_by(self, sees: Callable[[str], bool]) -> list[str]:
        """List the sessions whose subject may be seen, in the order of their ids."""
        return sorted(session_id for session_id, entry in self._entries.items() if sees(entry.subject))

    def count(self, subject: str) -> int:
        """Count the sessions of a subject that no other trainer has."""
        return len(self._counted(subject))

    def total_bytes(self, subject: str) -> int:
        """Sum the stored bytes of these sessions."""
        return sum(entry.stored_bytes for entry in self._counted(subject).values())

    def entry(self, session_id: str) -> StoredEntry | None:
        """Return the facts of a session; None if it is not stored."""
        return self._entries.get(session_id)

    def useless(self, subject: str) -> list[str]:
        """List the sessions that store too little to be resumed."""
        return [name for name, entry in self._counted(subject).items() if not entry.resumable]

    def _counted(self, subject: str) -> dict[str, StoredEntry]:
        return {
            name: entry for name, entry in self._entries.items() if entry.subject == subject and not entry.elsewhere
        }
