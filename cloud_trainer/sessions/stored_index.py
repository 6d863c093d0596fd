"""Which sessions are stored, whose they are and how large: what quotas and lists are made from.

Knows nothing of files. A session's subject never changes, so its record is read once.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What is known of one stored session."""

    subject: str
    stored_bytes: int = 0
    resumable: bool = False
    """Whether there is a checkpoint, without which nobody can resume it."""
    elsewhere: bool = False
    """Whether another trainer that lives has it: it counts there."""


class StoredIndex:
    """The stored sessions by their ids. Used on the event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, StoredEntry] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._entries

    def put(self, session_id: str, entry: StoredEntry) -> None:
        """Something is stored of a session from now on, or the amount has changed."""
        self._entries[session_id] = entry

    def remove(self, session_id: str) -> None:
        """Nothing is stored of it any more; nothing happens where nothing was."""
        self._entries.pop(session_id, None)

    @property
    def session_ids(self) -> set[str]:
        """The sessions of which something is stored."""
        return set(self._entries)

    def seen_by(self, sees: Callable[[str], bool]) -> list[str]:
        """The sessions whose subject may be seen, in the order of their ids."""
        return sorted(session_id for session_id, entry in self._entries.items() if sees(entry.subject))

    def count(self, subject: str) -> int:
        """Sessions of a subject that no other trainer has."""
        return len(self._counted(subject))

    def total_bytes(self, subject: str) -> int:
        """The bytes that are stored of these."""
        return sum(entry.stored_bytes for entry in self._counted(subject).values())

    def entry(self, session_id: str) -> StoredEntry | None:
        """What is known of a session; None where nothing is stored of it."""
        return self._entries.get(session_id)

    def useless(self, subject: str) -> list[str]:
        """Those of which too little is stored to resume them."""
        return [name for name, entry in self._counted(subject).items() if not entry.resumable]

    def _counted(self, subject: str) -> dict[str, StoredEntry]:
        return {
            name: entry for name, entry in self._entries.items() if entry.subject == subject and not entry.elsewhere
        }
