"""Folders of files that are each there whole or not at all: a local directory, or any fsspec URL.

Knows nothing of what the files hold.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import fsspec

from shared.errors import ConfigError, StorageError
from shared.files.private_files import close_folder, make_folder, open_file
from shared.files.state_directory import state_directory

_SCRATCH = ".partial"
"""The end of a file's name until the file is whole. The next write of that name replaces a file that a crash has left so."""


class Files(Protocol):
    """A folder. Names are plain: letters, digits, dots and dashes, so that none leads out of it."""

    def write(self, name: str, data: bytes) -> None:
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
        """When a file of this folder was last written, in seconds since 1970; None without a file. Raises StorageError."""

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


class LocalFiles:
    """A directory of this machine, closed to other users.

    A file is written under another name, synced and renamed; then the directory is synced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, data: bytes) -> None:
        """See `Files`."""
        target, scratch = self.path / name, self.path / (name + _SCRATCH)
        try:
            self._make()
            with os.fdopen(open_file(scratch, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
            _sync_directory(self.path)
        except OSError as cause:
            with suppress(OSError):  # a full disk wants its room back
                scratch.unlink(missing_ok=True)
            raise StorageError(f"{target} cannot be written: {cause.strerror or cause}") from cause

    def create(self, name: str) -> bool:
        """See `Files`."""
        target = self.path / name
        try:
            self._make()
            handle = open_file(target, os.O_WRONLY | os.O_EXCL)
        except FileExistsError:
            return False
        except OSError as cause:
            raise StorageError(f"{target} cannot be written: {cause.strerror or cause}") from cause
        try:
            with os.fdopen(handle, "wb") as file:
                os.fsync(file.fileno())
            _sync_directory(self.path)
        except OSError as cause:
            with suppress(OSError):
                target.unlink(missing_ok=True)
            raise StorageError(f"{target} cannot be written: {cause.strerror or cause}") from cause
        return True

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise StorageError(f"{self.path / name} cannot be read: {cause.strerror or cause}") from cause

    def names(self) -> list[str]:
        """See `Files`."""
        return [entry.name for entry in self._entries() if entry.is_file() and not entry.name.endswith(_SCRATCH)]

    def written_at(self) -> float | None:
        """See `Files`."""
        try:
            return max((entry.stat().st_mtime for entry in self._entries() if entry.is_file()), default=None)
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be read: {cause.strerror or cause}") from cause

    def sizes(self) -> dict[str, int]:
        """See `Files`."""
        try:
            return {
                entry.name: entry.stat().st_size
                for entry in self._entries()
                if entry.is_file() and not entry.name.endswith(_SCRATCH)
            }
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be read: {cause.strerror or cause}") from cause

    def remove(self, name: str) -> None:
        """See `Files`."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as cause:
            raise StorageError(f"{self.path / name} cannot be removed: {cause.strerror or cause}") from cause

    def folder(self, name: str) -> "LocalFiles":
        """See `Files`."""
        return LocalFiles(self.path / name)

    def folders(self) -> list[str]:
        """See `Files`."""
        return [entry.name for entry in self._entries() if entry.is_dir()]

    def clear(self) -> None:
        """See `Files`."""
        try:
            for entry in self._entries():
                if entry.is_dir():
                    self.folder(entry.name).clear()
                else:
                    entry.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self.path.rmdir()
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be removed: {cause.strerror or cause}") from cause

    def _make(self) -> None:
        if not self.path.is_dir():
            make_folder(self.path)
            _sync_directory(self.path.parent)
        close_folder(self.path)

    def _entries(self) -> list[Path]:
        try:
            return list(self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be read: {cause.strerror or cause}") from cause


class FsspecFiles:
    """A folder of an object store, or of any other file system that fsspec knows. An object appears there whole."""

    def __init__(self, file_system: Any, path: str) -> None:
        self._system = file_system
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return str(self._system.unstrip_protocol(self._path))

    def write(self, name: str, data: bytes) -> None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "written"):
            self._system.makedirs(self._path, exist_ok=True)
            self._system.pipe_file(f"{self._path}/{name}", data)

    def create(self, name: str) -> bool:
        """See `Files`. Only where the driver creates exclusively does one call alone succeed (docs/recovery.md)."""
        with _storage_failures(f"{self}/{name}", "written"):
            self._system.makedirs(self._path, exist_ok=True)
            try:
                self._system.pipe_file(f"{self._path}/{name}", b"", mode="create")
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "read"):
            try:
                return bytes(self._system.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """See `Files`."""
        return [name for name, kind, _ in self._entries() if kind == "file"]

    def written_at(self) -> float | None:
        """See `Files`."""
        names = self.names()
        with _storage_failures(str(self), "read"):
            return max((self._system.modified(f"{self._path}/{name}").timestamp() for name in names), default=None)

    def sizes(self) -> dict[str, int]:
        """See `Files`."""
        return {name: size for name, kind, size in self._entries() if kind == "file"}

    def remove(self, name: str) -> None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "removed"), suppress(FileNotFoundError):
            self._system.rm_file(f"{self._path}/{name}")

    def folder(self, name: str) -> "FsspecFiles":
        """See `Files`."""
        return FsspecFiles(self._system, f"{self._path}/{name}")

    def folders(self) -> list[str]:
        """See `Files`."""
        return [name for name, kind, _ in self._entries() if kind == "directory"]

    def clear(self) -> None:
        """See `Files`."""
        with _storage_failures(str(self), "removed"), suppress(FileNotFoundError):
            self._system.rm(self._path, recursive=True)

    def _entries(self) -> list[tuple[str, str, int]]:
        """The name, kind and bytes of each entry."""
        with _storage_failures(str(self), "read"):
            try:
                self._system.invalidate_cache(self._path)
                found = self._system.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
            return [
                (entry["name"].rstrip("/").rpartition("/")[2], entry["type"], int(entry["size"] or 0))
                for entry in found
            ]


@contextmanager
def _storage_failures(what: str, done: str) -> Iterator[None]:
    """Turn whatever a file system's driver raises into a StorageError of one sentence."""
    try:
        yield
    except Exception as cause:
        raise StorageError(f"{what} cannot be {done}: {type(cause).__name__}: {cause}") from cause


def open_files(location: str, key: str, environ: Mapping[str, str] = os.environ) -> Files:
    """The folder at a location: a path, a URL that fsspec knows, or "auto" for the state directory of this service or user.

    key: the setting that holds the location, for the error. Raises ConfigError for a URL whose driver is missing.
    """
    if location == "auto":
        return LocalFiles(state_directory(environ))
    if "://" not in location:
        return LocalFiles(Path(location).expanduser().absolute())
    try:
        system, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as cause:
        raise ConfigError(f"{key}: {location} cannot be opened: {cause}") from cause
    return LocalFiles(Path(path)) if "file" in system.protocol else FsspecFiles(system, path)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
