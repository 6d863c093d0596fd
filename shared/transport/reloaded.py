"""What files say, read again when they change: certificates are rotated and tokens withdrawn without a restart.

Knows nothing of what is in them. Nothing polls: whoever needs the value asks for it, and asking costs a stat a file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from shared.errors import ConfigError

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_Stamp = tuple[int, int, int] | None


class Reloaded(Generic[T]):
    """The value of `read`, which looks at `paths`; may be asked from any thread.

    Raises ConfigError from the constructor when `read` does. Later a change that cannot be read is logged once and the
    last good value stays: two files that belong together are never replaced in the same instant.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._stamps = self._look()
        self._value = read()

    def get(self) -> T:
        """The value of now."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # before reading: what changes meanwhile is another change
            try:
                self._value = self._read()
                _log.info("read again", files=[str(path) for path in self._paths])
            except ConfigError as error:
                _log.warning("changed files cannot be used; what they said before stays in force", reason=str(error))
        return self._value

    def _look(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
