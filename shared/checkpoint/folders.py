"""Folders of files that are each there whole or not at all, whatever they lie on. Knows nothing of the files' content."""

from typing import Protocol

from shared.bounds import is_file_name
from shared.errors import StorageError


class Files(Protocol):
    """A folder. Names are plain (`is_file_name`), so that none leads out of it; any other raises StorageError."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file, or replace the one of that name. Raises StorageError.

        After an error or a crash the old file or the new one is there, or none.
        """

    def create(self, name: str) -> bool:
        """Create an empty file; returns False where there is one of that name. The file outlives a crash once this returns.

        Of several calls at one time, in other processes or on other machines, one succeeds. Raises StorageError.
        """

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where there is no such file. Raises StorageError."""

    def names(self) -> list[str]:
        """The names of the whole files, in no order. Raises StorageError."""

    def written_at(self) -> float | None:
        """Return the time of the last write to a file of this folder, in seconds since 1970; None without a file.
        Raises StorageError."""

    def sizes(self) -> dict[str, int]:
        """The bytes of each whole file, by name. Raises StorageError."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises StorageError."""

    def folder(self, name: str) -> "Files":
        """A folder in this one. The first write to it makes it."""

    def folders(self) -> list[str]:
        """The names of the folders in this one, in no order. Raises StorageError."""

    def clear(self) -> None:
        """Remove this folder and all that is in it. Raises StorageError."""

    def hold(self) -> "Held | None":
        """Show other processes that this one uses the folder, until it lets it go or ends; None where another one shows it.

        Raises StorageError.
        """

    def is_held(self) -> bool:
        """Tell whether a living process shows that it uses the folder. It only asks. Raises StorageError."""


class Held(Protocol):
    """A folder that this process is shown to use."""

    def renew(self) -> None:
        """Show it again: each HELD_SECONDS / 3, where the end of a process goes unnoticed. Raises StorageError."""

    def let_go(self) -> None:
        """Show it no more. Raises StorageError."""


HELD_SECONDS = 180.0
"""Time for which a process that has ended may seem to use a folder of an object store, by the clocks of the machines."""


def plain_name(folder: Files, name: str) -> str:
    """The name, where it names something inside a folder. Raises StorageError."""
    if not is_file_name(name):
        raise StorageError(f"{name[:80]!r} names nothing inside {folder}; a name is letters, digits, dots and dashes")
    return name
