"""The part of a session that outlives the process, on either side: a record, the term of the last attach, and checkpoints.

A record is a small sealed document; what it says is each side's own. A term is taken by creating an empty file, which is never
written to, so that of two processes on one store, or two agents with one term, one gets it. Its methods block; a thread of
their own calls them.
"""

import re
from pathlib import Path
from typing import Any

from shared.checkpoint.documents import seal, unseal
from shared.checkpoint.files import LocalFiles
from shared.checkpoint.folders import Files
from shared.checkpoint.store import CheckpointStore

_RECORD = "session.json"
_RECALLED = "recalled"
_TERM = re.compile(r"term-(\d{1,20})", re.ASCII)


class SessionFolder:
    """The folder of one session."""

    def __init__(self, files: Files, keep: int) -> None:
        """keep: how many checkpoints are left when they are pruned."""
        self.checkpoints = CheckpointStore(files, keep)
        self.files = files

    def write(self, record: dict[str, Any]) -> None:
        """Replace the record. Raises StorageError; then it is the one that was there, or none."""
        self.files.write(_RECORD, seal(record))

    def read(self) -> dict[str, Any] | None:
        """The record; None where there is none that can be believed. Raises StorageError."""
        data = self.files.read(_RECORD)
        return None if data is None else unseal(data)

    def term(self) -> int:
        """The highest term that was taken; 0 before the first. Raises StorageError."""
        return max(self._terms(), default=0)

    def take_term(self, term: int) -> bool:
        """Take a term, for good. Returns False if it or a higher one was taken before. Lower ones are forgotten.

        Raises StorageError where that cannot be written.
        """
        if not self.files.create(_name(term)):
            return False
        others = [other for other in self._terms() if other != term]
        if any(other > term for other in others):
            return False
        for other in others:
            self.files.remove(_name(other))
        return True

    @property
    def recalled(self) -> Path | None:
        """Return the folder of the features that the session may keep; None where it has none on this machine."""
        files = self.files.folder(_RECALLED)
        return files.path if isinstance(files, LocalFiles) else None

    def total_bytes(self) -> int:
        """The size of all that is stored. Raises StorageError."""
        return sum(self.files.sizes().values())

    def empty(self) -> None:
        """Remove its terms, its checkpoints, and the folders in it. Raises StorageError."""
        for term in self._terms():
            self.files.remove(_name(term))
        for name in {*self.checkpoints.names(), *self.checkpoints.replicas()}:
            self.checkpoints.remove(name)
        self.checkpoints.prune()  # increments, too
        for folder in self.files.folders():
            self.files.folder(folder).clear()

    def remove(self) -> None:
        """Forget the session. Raises StorageError."""
        self.files.remove(_RECORD)  # first, so that a removal that is cut short leaves nothing to go on with
        self.files.clear()

    def _terms(self) -> list[int]:
        return [int(match[1]) for name in self.files.names() if (match := _TERM.fullmatch(name)) is not None]


def _name(term: int) -> str:
    return f"term-{term}"
