"""Folders of this machine, whose files are each there whole or not at all, and which kind of folder a location is."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import fsspec

from shared.bounds import is_file_name
from shared.checkpoint.folders import Held, plain_name
from shared.checkpoint.object_store import FsspecFiles
from shared.errors import ConfigError, StorageError
from shared.files.folder_lock import is_locked, lock_folder
from shared.files.private_files import close_folder, make_folder, open_file, state_directory

_SCRATCH = ".partial"
"""The end of a file's name until the file is whole. The next write of that name replaces a file that a crash has left so."""


class LocalFiles:
    """A directory of this machine, closed to other users.

    A file is written under another name, synced and renamed; then the directory is synced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """See `Files`."""
        target, scratch = self._at(name), self._at(name + _SCRATCH)
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
        target = self._at(name)
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
        source = self._at(name)
        try:
            return source.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise StorageError(f"{source} cannot be read: {cause.strerror or cause}") from cause

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
        target = self._at(name)
        try:
            target.unlink(missing_ok=True)
        except OSError as cause:
            raise StorageError(f"{target} cannot be removed: {cause.strerror or cause}") from cause

    def folder(self, name: str) -> "LocalFiles":
        """See `Files`."""
        return LocalFiles(self._at(name))

    def folders(self) -> list[str]:
        """See `Files`."""
        return [entry.name for entry in self._entries() if entry.is_dir() and is_file_name(entry.name)]

    def clear(self) -> None:
        """See `Files`."""
        try:
            for entry in self._entries():
                if entry.is_dir() and not entry.is_symlink():
                    LocalFiles(entry).clear()
                else:
                    entry.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                self.path.rmdir()
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be removed: {cause.strerror or cause}") from cause

    def _at(self, name: str) -> Path:
        return self.path / plain_name(self, name)

    def hold(self) -> "Held | None":
        """See `Files`. The kernel notices when the process ends."""
        try:
            self._make()
        except OSError as cause:
            raise StorageError(f"{self.path} cannot be written: {cause.strerror or cause}") from cause
        handle = lock_folder(self.path)
        return None if handle is None else _Locked(handle)

    def is_held(self) -> bool:
        """See `Files`."""
        return is_locked(self.path)

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


class _Locked:
    """A folder of this machine whose lock this process has."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle

    def renew(self) -> None:
        """See `Held`."""

    def let_go(self) -> None:
        """See `Held`."""
        self._handle.close()


def open_files(location: str, key: str, environ: Mapping[str, str] = os.environ) -> LocalFiles | FsspecFiles:
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
