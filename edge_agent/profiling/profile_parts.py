"""Finished parts of an unfinished profile, in files beside it, so that an interrupted profile goes on where it was.

They only save time: what cannot be trusted is measured again.
"""

from pathlib import Path
from typing import Generic, TypeVar

import structlog
from pydantic import ValidationError

from shared.checkpoint import LocalFiles
from shared.config import Section

_log = structlog.get_logger(__name__)


class Part(Section):
    """The content of one file. With a profile of other settings it has nothing to do."""

    of: str
    """Digest of the settings that it belongs to."""


P = TypeVar("P", bound=Part)


class PartFile(Generic[P]):
    """A file of one kind of part. Its methods block, and raise StorageError."""

    def __init__(self, path: Path, kind: type[P]) -> None:
        self._files, self._path, self._kind = LocalFiles(path.parent), path, kind

    def load(self, of: str) -> P:
        """Return the parts that were made under the same settings; nothing, with a warning, when the file cannot be
        believed."""
        part = self.find()
        if part is None:
            return self._kind(of=of)
        if part.of != of:
            _log.warning("the stored parts of the profile have other settings; measuring again", file=str(self._path))
            return self._kind(of=of)
        return part

    def find(self) -> P | None:
        """Return the parts that were made under any settings; nothing, with a warning, when the file cannot be
        believed."""
        data = self._files.read(self._path.name)
        if data is None:
            return None
        try:
            return self._kind.model_validate_json(data)
        except ValidationError as wrong:
            why = wrong.errors(include_url=False)[0]["msg"]
            _log.warning(
                "the stored parts of the profile are damaged; measuring again",
                file=str(self._path),
                reason=why,
            )
            return None

    def save(self, part: P) -> None:
        """Write it down, whole or not at all."""
        self._files.write(self._path.name, part.model_dump_json(exclude_none=True).encode())

    def remove(self) -> None:
        """It is not needed any more."""
        self._files.remove(self._path.name)
