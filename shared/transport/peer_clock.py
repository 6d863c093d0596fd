"""The peer's monotonic clock in terms of our own, for drawing both sides on one time line."""


class PeerClock:
    """Keeps the offset seen in the quickest exchange, which bounds its error by half of that round trip."""

    def __init__(self) -> None:
        self._round_trip_seconds = float("inf")
        self._offset_seconds = 0.0

    def observe(self, sent_seconds: float, answered_seconds: float, peer_nanoseconds: int) -> None:
        """We sent something, the peer noted its time on arrival, and its answer came; our own times by time.monotonic."""
        round_trip = answered_seconds - sent_seconds
        if round_trip < self._round_trip_seconds:
            self._round_trip_seconds = round_trip
            self._offset_seconds = peer_nanoseconds / 1e9 - (sent_seconds + answered_seconds) / 2

    def to_local(self, peer_nanoseconds: int) -> float:
        """The peer's moment as time.monotonic would have shown it here."""
        return peer_nanoseconds / 1e9 - self._offset_seconds
