"""The peer's monotonic clock in terms of our own, for drawing both sides on one time line."""

DRIFT = 100e-6
"""Seconds by which two clocks may drift apart in a second: quartz keeps to a tenth of it, a hot or cheap one does not."""


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
