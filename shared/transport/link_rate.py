"""What a link carries, learnt from acks: its rate and its round trip, and from both how much should be under way.

The receiver's clock times the arrivals, so what the sender's buffers swallowed does not count and two machines' clocks
are never compared. Knows nothing of gRPC; the clocks are the caller's.
"""

from collections import deque

SAMPLES = 16
"""Rates that the estimate looks back on."""
SAMPLE_SECONDS = 0.004
"""Shortest span of one rate: below it, what is measured is how the receiver's event loop reads."""
LEAST_SAMPLE_SECONDS = 0.0002
"""Shortest span that counts at the end of a transfer. Being short it weighs little, but on a fast link it is all there is."""
WINDOW_ROUND_TRIPS = 2.0
"""Bandwidth-delay products that should be under way: one fills the link, the other bridges the ack's way back."""


class LinkRate:
    """The sender's view of one direction of one stream."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._base: tuple[int, int] | None = None
        self._latest: tuple[int, int] | None = None
        self._round_trips: deque[float] = deque(maxlen=4 * SAMPLES)

    def idle(self) -> None:
        """Nothing is under way: the time until the next arrival says nothing about the link."""
        if self._base is not None and self._latest is not None:
            self._sample(*self._latest, LEAST_SAMPLE_SECONDS)  # what is left of a transfer too short for a whole one
        self._base = self._latest = None

    def acknowledged(self, received_bytes: int, receiver_nanoseconds: int, round_trip_seconds: float) -> None:
        """An ack came. round_trip_seconds: since the write of the last byte that it acknowledges."""
        self._round_trips.append(round_trip_seconds)
        if self._base is None:
            self._base = (received_bytes, receiver_nanoseconds)
            return
        self._latest = (received_bytes, receiver_nanoseconds)
        self._sample(received_bytes, receiver_nanoseconds, SAMPLE_SECONDS)

    def _sample(self, received_bytes: int, receiver_nanoseconds: int, least_seconds: float) -> None:
        assert self._base is not None
        seconds = (receiver_nanoseconds - self._base[1]) / 1e9
        if seconds >= least_seconds:
            self._samples.append(((received_bytes - self._base[0]) * 8 / seconds, seconds))
            self._base, self._latest = (received_bytes, receiver_nanoseconds), None

    @property
    def bits_per_second(self) -> float | None:
        """The rate that the link kept for half of the time it was busy; None before anything is known.

        The time-weighted median: a token bucket's first burst or a stall is an outlier, not a share of a mean.
        """
        if not self._samples:
            return None
        half = sum(seconds for _, seconds in self._samples) / 2
        for rate, seconds in sorted(self._samples):
            half -= seconds
            if half <= 0:
                return rate
        return max(self._samples)[0]

    @property
    def round_trip_seconds(self) -> float | None:
        """The shortest recent time from a chunk's write to its ack; None before the first."""
        return min(self._round_trips, default=None)

    @property
    def window_bytes(self) -> int | None:
        """How much should be under way; None before the rate is known."""
        rate, round_trip = self.bits_per_second, self.round_trip_seconds
        if rate is None or round_trip is None:
            return None
        return int(WINDOW_ROUND_TRIPS * rate / 8 * round_trip)
