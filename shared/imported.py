"""The files of what factories have imported, as they were then: a process goes on with that when a file is changed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

_noted: dict[Path, tuple[int, int]] = {}
"""Time in nanoseconds and size of each file when it was imported."""


class ChangedFile(NamedTuple):
    """A file that is another one than was imported."""

    file: Path
    imported: str
    """Time of what was imported, in UTC."""
    now: str
    """Time of what is there, in UTC."""

    def told(self) -> str:
        """Return it in words, without the folder, which a peer need not know."""
        return f"has imported {self.file.name} of {self.imported}, and on its disk that file is now of {self.now}"


@contextmanager
def noting(module: str) -> Iterator[None]:
    """Note the files of the module, and of all that it imports, which the body imports for the first time."""
    if module in sys.modules:
        yield
        return
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and (state := _state(Path(file))) is not None:
                _noted[Path(file)] = state


def changed() -> list[ChangedFile]:
    """List the files that have changed since they were imported; those that are gone are in nobody's way."""
    states = [(file, then, _state(file)) for file, then in list(_noted.items())]  # others may open models meanwhile
    return [
        ChangedFile(file, _time(then[0]), _time(now[0]))
        for file, then, now in states
        if now is not None and now != then
    ]


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _time(nanoseconds: int) -> str:
    return (
        datetime.fromtimestamp(nanoseconds / 1e9, UTC)
        .isoformat(sep=" ", timespec="milliseconds")
        .removesuffix("+00:00")
    )
