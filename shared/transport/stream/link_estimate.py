"""The estimate of a link: all that the sender of a stream learns of it, and of the peer's clock, from acks.

Knows nothing of gRPC; the caller brings the clocks.
"""

from collections import deque
from statistics import median

from shared.transport.stream.link_rate import LinkRate

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

LATE_SECONDS, LATE_TIMES = 0.01, 2.0
"""Bound on the seconds of an ack, beyond which its chunk is late: the first, plus the second times the usual seconds."""
IN_A_ROW = 2
"""Number of late chunks that make a suspicion: one may have come to a peer whose processor was busy."""
USUAL = 16
"""Number of latest chunks whose median is the usual time of an ack besides the chunk's own. A weak device is always late."""
MEASURED_AGAIN_SECONDS = 30.0
"""A link is measured so often, whether it shows a reason or not."""

DRIFT = 100e-6
"""Seconds by which two clocks may drift apart in a second: quartz keeps to a tenth of it, a hot or cheap one does not."""


class RoundTrip:
    """Time to the peer and back: the delay that no rate explains and that a pipeline has to bridge.

    The shortest time of the last seconds counts, because a longer one contains a queue or a busy peer.
    """

    def __init__(self) -> None:
        self._shortest: deque[tuple[float, float]] = deque()
        """Moments and round trips, both rising: the first is the shortest of all, each next the shortest since the last."""

    @property
    def seconds(self) -> float | None:
        """The round trip without the queue in front of the link; None before anything is known."""
        return self._shortest[0][1] if self._shortest else None

    def is_due(self, chunk_bytes: int, now_seconds: float) -> bool:
        """Tell whether this chunk should be sent by itself and acknowledged: it is small, and the last measurement is too
        old."""
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


class Suspicion:
    """Suspicion that a link has become slower: where each tensor is one chunk its rate is not seen, but late acks are."""

    def __init__(self) -> None:
        self._besides_seconds: deque[float] = deque(maxlen=USUAL)
        self._late = 0

    @property
    def is_raised(self) -> bool:
        """Tell whether the link had better be measured."""
        return self._late >= IN_A_ROW

    def note(self, ack_seconds: float, carried_seconds: float) -> None:
        """A chunk was acknowledged after so many seconds, of which the link takes `carried_seconds` if it is as it was."""
        besides = ack_seconds - carried_seconds
        usual = median(self._besides_seconds) if self._besides_seconds else besides
        self._besides_seconds.append(besides)
        is_late = ack_seconds > LATE_SECONDS + LATE_TIMES * (max(usual, 0.0) + carried_seconds)
        self._late = self._late + 1 if is_late else 0


class PeerClock:
    """Keeps the offset between the clocks that is known best now.

    Half of an exchange's round trip bounds the error of the offset that it shows. An old offset may be wrong by the drift since
    then, too, and gives way to a slower exchange that is recent.
    """

    def __init__(self) -> None:
        self._error_seconds = float("inf")
        self._observed_seconds = 0.0
        self._offset_seconds = 0.0

    def observe(self, sent_seconds: float, answered_seconds: float, peer_nanoseconds: int) -> None:
        """Learn from an exchange: we sent, the peer noted the arrival, the answer came. Our times are of time.monotonic."""
        error = (answered_seconds - sent_seconds) / 2
        if error < self._error_seconds + DRIFT * (answered_seconds - self._observed_seconds):
            self._error_seconds, self._observed_seconds = error, answered_seconds
            self._offset_seconds = peer_nanoseconds / 1e9 - (sent_seconds + answered_seconds) / 2

    def to_local(self, peer_nanoseconds: int) -> float:
        """A moment of the peer's clock as time.monotonic would have shown it here."""
        return peer_nanoseconds / 1e9 - self._offset_seconds


class LinkEstimate:
    """The rate of one direction of a stream, its round trip, and whether both are still believed."""

    def __init__(self) -> None:
        self.rate = LinkRate()
        self.round_trip = RoundTrip()
        self._suspicion = Suspicion()
        self._measured_seconds = 0.0
        """Time of the last tensor that measured the link."""

    def begin_measurement(self, now_seconds: float) -> bool:
        """Tell whether a tensor sent now should measure the link, which then counts as measured."""
        is_due = now_seconds > self._measured_seconds + MEASURED_AGAIN_SECONDS
        if is_due := is_due or self.rate.bits_per_second is None or self._suspicion.is_raised:
            self._measured_seconds = now_seconds
        return is_due

    def acknowledged(
        self,
        received_bytes: int,
        receiver_nanoseconds: int,
        written_seconds: float,
        now_seconds: float,
        chunk_bytes: int,
    ) -> None:
        """Take an ack, as `LinkRate.acknowledged` does. chunk_bytes: those of the last chunk that has arrived."""
        ack_seconds = now_seconds - written_seconds
        self._suspicion.note(ack_seconds, chunk_bytes * 8 / (self.rate.bits_per_second or float("inf")))
        self.rate.acknowledged(received_bytes, receiver_nanoseconds, written_seconds, now_seconds)
        # An ack that was all queue shows that the queue was taken for too long, so it bounds the round trip by itself.
        unqueued_seconds = ack_seconds - self.rate.queue_seconds or ack_seconds
        self.round_trip.observe(unqueued_seconds, chunk_bytes, self.rate.bits_per_second, now_seconds)
