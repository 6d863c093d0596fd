"""What a link carries, learnt from acks: its rate, and from it and the queue how much should be under way.

The receiver's clock times the arrivals, so what the sender's buffers swallowed does not count. Knows nothing of gRPC; the
clocks are the caller's.
"""

from collections import deque

from shared.transport.queue_delay import Passage, QueueDelay

SAMPLES = 16
"""Rates and round trips that the estimates look back on."""
SAMPLE_SECONDS = 0.004
"""Span of one rate: below it, what is measured is how the receiver's event loop reads."""
LEAST_SAMPLE_SECONDS = 0.0002
"""Shortest span that counts at the end of a transfer. Being short it weighs little, but on a fast link it is all there is."""
BUSY_SECONDS = 0.002
"""A longer queue shows that the link set the rate, and not the sender."""
PACE, PACE_WITH_QUEUE = 1.25, 1.05
"""How much faster than the link its sender writes: without a queue enough to find out soon that the link has become faster,
with one so little that the queue stays short."""
FASTER = 1.1
"""A rate so far above the known one is believed without a queue: the link has become faster."""
QUEUE_SECONDS = 0.010
"""The queue that is kept in front of the link. The link lives on it while the sender is late, and whatever shares the
link waits behind it."""
DRAINED = 0.8
"""Share of what the link carries until an ack is back that is left under way while the queue is let run dry."""


class LinkRate:
    """The sender's view of one direction of one stream."""

    def __init__(self) -> None:
        self.bits_per_second: float | None = None
        """The median of the last rates at which the link was busy, so that a token bucket's first burst or a stall is one
        among many; None before anything is known."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._mark: tuple[int, int, bool] | None = None
        self._latest: tuple[int, int, bool] | None = None
        self._busy = False
        self._queue = QueueDelay()
        self._loops: deque[float] = deque(maxlen=SAMPLES)

    def idle(self) -> None:
        """Nothing is under way: the time until the next arrival says nothing about the link."""
        if self._latest is not None:
            self._measure(self._latest, LEAST_SAMPLE_SECONDS)  # what is left of a transfer too short for a whole one
        self._mark = self._latest = None
        self._busy = False

    def acknowledged(
        self,
        received_bytes: int,
        receiver_nanoseconds: int,
        chunk_bytes: int,
        written_seconds: float,
        now_seconds: float,
    ) -> None:
        """An ack came: so many bytes had arrived by then, and the last `chunk_bytes` of them were written then."""
        round_trip = now_seconds - written_seconds
        byte_seconds = 0.0 if self.bits_per_second is None else 8 / self.bits_per_second
        passage = Passage(receiver_nanoseconds / 1e9 - written_seconds, chunk_bytes, byte_seconds)
        queue = self._queue.observe(passage, now_seconds, round_trip)
        self._loops.append(round_trip - queue)
        self._busy = queue > BUSY_SECONDS
        self._latest = (received_bytes, receiver_nanoseconds, self._busy)
        self._measure(self._latest, SAMPLE_SECONDS)

    @property
    def pace_bits_per_second(self) -> float | None:
        """How fast to write; None before the rate is known."""
        if self.bits_per_second is None:
            return None
        return self.bits_per_second * (PACE_WITH_QUEUE if self._busy else PACE)

    @property
    def window_bytes(self) -> int | None:
        """How much should be under way; None before the rate is known.

        What the link carries until an ack is back, whatever delays it on its way, and the queue that is kept.
        """
        if self.bits_per_second is None:
            return None
        loop = max(self._loops)
        return int(self.bits_per_second / 8 * (DRAINED * loop if self._queue.draining else loop + QUEUE_SECONDS))

    def _measure(self, latest: tuple[int, int, bool], least_seconds: float) -> None:
        """Take the rate since the last mark, when that is so long ago."""
        if self._mark is None:
            self._mark = latest
            return
        seconds = (latest[1] - self._mark[1]) / 1e9
        if seconds < least_seconds:
            return
        rate = (latest[0] - self._mark[0]) * 8 / seconds
        busy, known = self._mark[2] and latest[2], self.bits_per_second
        self._mark = latest
        if known is None or busy or rate > FASTER * known:
            self._samples.append((rate, min(seconds, SAMPLE_SECONDS)))
            self.bits_per_second = self._median()

    def _median(self) -> float:
        half = sum(weight for _, weight in self._samples) / 2
        for rate, weight in sorted(self._samples):
            half -= weight
            if half <= 0:
                return rate
        return max(self._samples)[0]
