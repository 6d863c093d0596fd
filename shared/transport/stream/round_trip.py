"""Time to the peer and back, learnt from acks: the delay that no rate explains and that a pipeline has to bridge.

The shortest time of the last seconds counts, because a longer one contains a queue or a busy peer. Knows nothing of gRPC; the
caller brings the clock.
"""

from collections import deque

MEMORY_SECONDS = 10.0
"""Time for which an ack is remembered: after that, the way may have become longer for good."""
RENEWED_SECONDS = 1.0
"""Interval at which a small chunk is sent by itself for this measurement, where it could go with others."""
LARGEST_SHARE = 0.1
"""Share of an ack's time that its chunk may take on the link. With a larger share, the time shows the rate."""
SHORT_SECONDS = 0.001
"""Time that a chunk may take on the link whatever its share: reading a chunk takes longer."""
SMALL_BYTES = 4096
"""A chunk that is short on any link that can be trained over."""


class RoundTrip:
    """The sender's view of one stream."""

    def __init__(self) -> None:
        self._shortest: deque[tuple[float, float]] = deque()
        """Moments and round trips, both rising: the first is the shortest of all, each next the shortest since the last."""

    @property
    def seconds(self) -> float | None:
        """The round trip without the queue in front of the link; None before anything is known."""
        return self._shortest[0][1] if self._shortest else None

    def is_due(self, chunk_bytes: int, now_seconds: float) -> bool:
        """Tell whether this chunk should be acknowledged: it is small, and the last measurement is too old."""
        latest = self._shortest[-1][0] if self._shortest else float("-inf")
        return chunk_bytes <= SMALL_BYTES and now_seconds > latest + RENEWED_SECONDS

    def observe(self, seconds: float, chunk_bytes: int, bits_per_second: float | None, now_seconds: float) -> None:
        """A chunk was acknowledged `seconds` after it was written, without its time in the queue.

        bits_per_second: the link's rate; while it is unknown (None), only small chunks count.
        """
        if bits_per_second is None:
            is_short = chunk_bytes <= SMALL_BYTES
        else:
            is_short = chunk_bytes * 8 / bits_per_second <= max(LARGEST_SHARE * seconds, SHORT_SECONDS)
        if not is_short:
            return
        while self._shortest and self._shortest[-1][1] >= seconds:
            self._shortest.pop()
        self._shortest.append((now_seconds, seconds))
        while self._shortest[0][0] < now_seconds - MEMORY_SECONDS:
            self._shortest.popleft()
