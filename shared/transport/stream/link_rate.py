"""Measurements of a link, learnt from acks: its rate, the queue in front of it, and the delay of an ack without that queue.

The receiver's clock times the arrivals, so bytes in the sender's buffers do not count. A one-way delay is read from
the clocks of two machines, so only differences of delays mean anything (LEDBAT, RFC 6817), and a slow way back does not
count either. Only the time in which the link was busy counts: at other times, the arrivals show the sender's pace.
Knows nothing of gRPC; the caller brings the clocks.
"""

from collections import deque
from statistics import median

from shared.bounds import MOST_BITS_PER_SECOND

SAMPLES = 9
"""Number of latest rates that the estimate is made of."""
SAMPLE_SECONDS = 0.004
"""Busy time that one rate is measured over. In less time the measurement shows how the receiver's event loop reads."""
SAMPLE_BYTES = 512 * 1024
"""Bytes that one rate may be measured over instead, on a fast link: more than a token bucket lets through at once, and so much
that a step says as much about the link as a moment in which the receiver did not look."""
LEAST_GAP_BYTES = 4096
"""Fewer bytes between two arrivals say nothing: the receiver needs longer to look at them than the link to carry them."""
SLACK = 0.05
"""For this share of the time between two arrivals a link that counts as busy may have stood still."""
CHANGE = 1.25
"""Factor by which a link must have changed for its past to be forgotten at once."""
CHANGE_SAMPLES = 3
"""Rates in a row, none of a short time, that show such a change: a stall or the burst of a token bucket is one or two."""
MOST_WEIGHT = 4
"""Largest weight of one span of time, in medians of the spans: a stall is long, and says no more than other spans."""
LOOPS = 16
"""Number of latest round trips that count."""
BASE_SECONDS = 10.0
"""Time for which the shortest delay is believed. Routes and clocks change, and a sender that always keeps a queue never
sees the delay without one; so after this time the queue has to run dry once."""


class LinkRate:
    """The sender's view of one direction of one stream."""

    def __init__(self) -> None:
        self.bits_per_second: float | None = None
        """The rate that the link reached for half of the time it was busy recently; None before anything is known."""
        self.queue_seconds = 0.0
        """Delay of the last bytes beyond that of the quickest bytes."""
        self._rates: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._busy_bytes, self._busy_seconds = 0, 0.0
        self._last: tuple[int, int] | None = None
        self._turn = (0, 0)
        self._loops: deque[float] = deque(maxlen=LOOPS)
        self.loop_seconds = 0.0
        """The time from a write to its ack without the queue: the median of the last; 0 before the first."""
        self._origin_nanoseconds: int | None = None
        self._base_seconds = float("inf")
        self._based_at = 0.0
        self._draining_since: float | None = None

    @property
    def draining(self) -> bool:
        """Tell whether fewer bytes should be under way, until bytes arrive that have met no queue."""
        return self._draining_since is not None

    def idle(self) -> None:
        """Note that nothing is under way: the time until the next arrival says nothing about the link."""
        self._last = None

    def acknowledged(
        self, received_bytes: int, receiver_nanoseconds: int, written_seconds: float, now_seconds: float
    ) -> None:
        """Take an ack.

        received_bytes: bytes that had arrived by receiver_nanoseconds. written_seconds: time of writing the last of them.
        """
        self._measure_queue(receiver_nanoseconds, written_seconds, now_seconds)
        self._loops.append(now_seconds - written_seconds - self.queue_seconds)
        self.loop_seconds = median(self._loops)
        last, self._last = self._last, (received_bytes, receiver_nanoseconds)
        if last is None:
            self._turn = self._last
            return
        count, seconds = received_bytes - last[0], (receiver_nanoseconds - last[1]) / 1e9
        # As long a queue as the time since the last arrival: when that came, these bytes were waiting already.
        if self.queue_seconds >= seconds * (1 - SLACK) and count >= LEAST_GAP_BYTES:
            self._busy_bytes += count
            self._busy_seconds += seconds
            self._take_busy()
            self._turn = self._last
        else:
            self._take_turn(self._last)

    def _measure_queue(self, receiver_nanoseconds: int, written: float, now: float) -> None:
        if self._origin_nanoseconds is None:
            self._origin_nanoseconds = receiver_nanoseconds
        delay = (receiver_nanoseconds - self._origin_nanoseconds) / 1e9 - written
        drained = self._draining_since is not None and written > self._draining_since
        if delay <= self._base_seconds or drained:
            self._base_seconds, self._based_at, self._draining_since = delay, now, None
        elif self._draining_since is None and now > self._based_at + BASE_SECONDS:
            self._draining_since = now
        # A sender that notes the time of a write too late makes a delay look too short, and every later queue too long.
        self.queue_seconds = min(max(delay - self._base_seconds, 0.0), max(now - written, 0.0))

    def _take_busy(self) -> None:
        enough = self._busy_seconds >= SAMPLE_SECONDS or self._busy_bytes >= SAMPLE_BYTES
        if enough and self._busy_seconds > 0:
            self._sample(self._busy_bytes * 8 / self._busy_seconds, self._busy_seconds)
            self._busy_bytes, self._busy_seconds = 0, 0.0

    def _take_turn(self, here: tuple[int, int]) -> None:
        """Take a rate over a whole round trip: the link carries at least what arrived, even if it was never seen busy."""
        seconds = (here[1] - self._turn[1]) / 1e9
        if seconds >= max(self.loop_seconds, SAMPLE_SECONDS):
            rate = (here[0] - self._turn[0]) * 8 / seconds
            if self.bits_per_second is not None and rate > CHANGE * self.bits_per_second:
                self._sample(rate, seconds)
            self._turn = here

    def _sample(self, rate: float, seconds: float) -> None:
        self._rates.append((min(rate, MOST_BITS_PER_SECOND), seconds))
        known, latest = self._usual_rate(), list(self._rates)[-CHANGE_SAMPLES:]
        same_way = min(latest)[0] > CHANGE * known or max(latest)[0] * CHANGE < known
        if same_way and all(span >= SAMPLE_SECONDS for _, span in latest):
            self._rates = deque(latest, maxlen=SAMPLES)
            known = self._usual_rate()
        self.bits_per_second = known

    def _usual_rate(self) -> float:
        """The time-weighted median: what a receiver reads at once after it was busy has a high rate for a short time."""
        most = MOST_WEIGHT * median(seconds for _, seconds in self._rates)
        weighted = sorted((rate, min(seconds, most)) for rate, seconds in self._rates)
        half = sum(weight for _, weight in weighted) / 2
        for rate, weight in weighted:
            half -= weight
            if half <= 0:
                return rate
        return weighted[-1][0]
