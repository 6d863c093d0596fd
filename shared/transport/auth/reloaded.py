"""The content of files, read again when they change: so certificates are rotated and tokens withdrawn without a restart.

Knows nothing of their content. Nothing polls: a caller that needs the value asks for it, and asking costs a stat a file.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from shared.errors import ConfigError, one_line

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_Stamp = tuple[int, ...] | None
RETRY_SECONDS = 0.5
"""Interval between attempts to read files that cannot be used and look the same: not every cause shows in them."""


class Reloaded(Generic[T]):
    """The value of `read`, which looks at `paths`; may be asked from any thread.

    A change that cannot be read is logged once and the last good value stays: two files that belong together are never
    replaced in the same instant. `failure` tells a caller that must not rely on the last good value.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], T],
        first: T | None = None,
        meanwhile: str = "what they said before stays in force",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """first: the value to begin with where the files cannot be read. Without one, the constructor raises ConfigError.
        meanwhile: the log's text about the time until an unreadable change is repaired.
        """
        self._paths = tuple(paths)
        self._read = read
        self._meanwhile = meanwhile
        self._clock = clock
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._tried_seconds = clock()
        self.failure: ConfigError | None = None
        """Reason why the files cannot be used now; None while they can. As of the last `get`."""
        try:
            self._value = read()
        except ConfigError as error:
            if first is None:
                raise
            self._value = first
            self._failed(error)

    def get(self) -> T:
        """The current value."""
        with self._lock:
            self._refresh()
            return self._value

    def _refresh(self) -> None:
        stamps = self._look()
        due = self.failure is not None and self._clock() - self._tried_seconds >= RETRY_SECONDS
        if stamps == self._stamps and not due:
            return
        self._stamps = stamps  # before reading: a change meanwhile is another change
        self._tried_seconds = self._clock()
        try:
            self._value = self._read()
        except ConfigError as error:
            self._failed(error)
            return
        self.failure = None
        _log.info("read again", files=[str(path) for path in self._paths])

    def _failed(self, error: ConfigError) -> None:
        if str(error) != str(self.failure):
            _log.warning(f"files cannot be used; {self._meanwhile}", reason=one_line(str(error)))
        self.failure = error

    def _look(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    # The change time tells of another mode or owner, which the modification time does not.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
