"""The share of the last seconds in which a thread was busy."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 10.0
"""Seconds that the share is of, about: as many as agents let pass between two probes."""


class BusyShare:
    """The share of one thread. Used on the event loop."""

    def __init__(self, busy_seconds: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """busy_seconds: returns the time for which the thread was busy so far."""
        self._busy_seconds = busy_seconds
        self._clock = clock
        self._looks = deque([(clock(), busy_seconds())])
        """Earlier looks at the clock and at the thread, a second apart at least."""

    def of_last_seconds(self) -> float:
        """Return the share since the newest look of `WINDOW_SECONDS` ago or longer, or since the first."""
        now, busy = self._clock(), self._busy_seconds()
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        since, before = self._looks[0]
        if now - self._looks[-1][0] >= 1.0:
            self._looks.append((now, busy))
        return min(1.0, max(0.0, (busy - before) / (now - since))) if now > since else 0.0
