"""Limits on the rate of calls: each caller has a bucket, which fills steadily and holds a burst. The owner brings the clock."""

from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 10.0
"""Largest burst, as seconds of the steady rate: opening a session asks for many blocks in a row."""
_MAX_KEYS = 4096
"""The most callers that are remembered. The one that has been silent for longest is forgotten, which bounds the memory."""


class RateLimit:
    """At most `per_second` calls of each key in the long run, and ten seconds' worth at once.

    clock: seconds, monotonic.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._capacity = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Count one call; returns 0 when it may go on, else the seconds to wait, and counts nothing."""
        level = self._level(key)
        admitted = level >= 1
        self._buckets.pop(key, None)
        self._buckets[key] = (level - 1 if admitted else level, self._clock())
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return 0.0 if admitted else (1 - level) / self._per_second

    def wait_seconds(self, key: str) -> float:
        """Return what `take` would return now, and count nothing."""
        return max(0.0, 1 - self._level(key)) / self._per_second

    def _level(self, key: str) -> float:
        now = self._clock()
        level, at = self._buckets.get(key, (self._capacity, now))
        return min(self._capacity, level + (now - at) * self._per_second)
