"""A worker's monotonic clock in terms of our own, learnt from what has come from it alone."""

from shared.transport.stream.peer_clock import DRIFT


class ReportedClock:
    """Knows one bound: nothing arrives before it was sent. What came fastest bounds best.

    So it puts a moment too late by that way at least, and never puts what was sent after it came. The bound loosens by what
    two clocks may drift.
    """

    def __init__(self) -> None:
        self._lead_seconds = float("inf")
        """Our clock minus the worker's, at most."""
        self._observed_seconds = 0.0

    def observe(self, sent_nanoseconds: int, arrived_seconds: float) -> None:
        """What was sent at this moment of the worker's clock, or later, has come at this one of time.monotonic."""
        loosened = self._lead_seconds + DRIFT * (arrived_seconds - self._observed_seconds)
        self._lead_seconds = min(loosened, arrived_seconds - sent_nanoseconds / 1e9)
        self._observed_seconds = arrived_seconds

    def to_local(self, worker_nanoseconds: int) -> float:
        """A moment of the worker's clock as time.monotonic would have shown it here, once something has come."""
        return worker_nanoseconds / 1e9 + self._lead_seconds
