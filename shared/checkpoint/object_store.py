"""Folders of an object store, or of any other file system that fsspec knows."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shared.bounds import is_file_name
from shared.checkpoint.folders import HELD_SECONDS, Held, plain_name
from shared.errors import StorageError

_LEASE = "held-"
"""The beginning of the name of a file by which a process shows that it uses a folder of an object store."""


class FsspecFiles:
    """A folder of an object store, or of any other file system that fsspec knows. An object appears there whole."""

    def __init__(self, file_system: Any, path: str) -> None:
        self._system = file_system
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return str(self._system.unstrip_protocol(self._path))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "written"):
            self._system.makedirs(self._path, exist_ok=True)
            self._system.pipe_file(self._at(name), bytes(data))

    def create(self, name: str) -> bool:
        """See `Files`. Only where the driver creates exclusively does one call alone succeed (docs/recovery.md)."""
        with _storage_failures(f"{self}/{name}", "written"):
            self._system.makedirs(self._path, exist_ok=True)
            try:
                self._system.pipe_file(self._at(name), b"", mode="create")
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "read"):
            try:
                return bytes(self._system.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """See `Files`."""
        return [name for name, kind, _ in self._entries() if kind == "file"]

    def written_at(self) -> float | None:
        """See `Files`."""
        names = self.names()
        with _storage_failures(str(self), "read"):
            return max((self._system.modified(self._at(name)).timestamp() for name in names), default=None)

    def sizes(self) -> dict[str, int]:
        """See `Files`."""
        return {name: size for name, kind, size in self._entries() if kind == "file"}

    def remove(self, name: str) -> None:
        """See `Files`."""
        with _storage_failures(f"{self}/{name}", "removed"), suppress(FileNotFoundError):
            self._system.rm_file(self._at(name))

    def folder(self, name: str) -> "FsspecFiles":
        """See `Files`."""
        return FsspecFiles(self._system, self._at(name))

    def folders(self) -> list[str]:
        """See `Files`."""
        return [name for name, kind, _ in self._entries() if kind == "directory" and is_file_name(name)]

    def clear(self) -> None:
        """See `Files`."""
        with _storage_failures(str(self), "removed"), suppress(FileNotFoundError):
            self._system.rm(self._path, recursive=True)

    def _at(self, name: str) -> str:
        return f"{self._path}/{plain_name(self, name)}"

    def hold(self) -> "Held | None":
        """See `Files`."""
        if self.is_held():
            return None
        lease = _Lease(self, f"{_LEASE}{secrets.token_hex(8)}")
        lease.renew()
        return lease

    def is_held(self) -> bool:
        """See `Files`. A process that has ended seems to live until its lease is too old."""
        names = [name for name in self.names() if name.startswith(_LEASE)]
        with _storage_failures(str(self), "read"), suppress(FileNotFoundError):
            written = [self._system.modified(f"{self._path}/{name}").timestamp() for name in names]
            return any(time.time() - at < HELD_SECONDS for at in written)
        return False

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


class _Lease:
    """A file in a folder of an object store, written again and again as long as a process uses the folder."""

    def __init__(self, files: FsspecFiles, name: str) -> None:
        self._files = files
        self._name = name

    def renew(self) -> None:
        """See `Held`."""
        self._files.write(self._name, b"")

    def let_go(self) -> None:
        """See `Held`."""
        self._files.remove(self._name)


@contextmanager
def _storage_failures(what: str, done: str) -> Iterator[None]:
    """Turn any error of a file system's driver into a StorageError of one sentence."""
    try:
        yield
    except Exception as cause:
        raise StorageError(f"{what} cannot be {done}: {type(cause).__name__}: {cause}") from cause
