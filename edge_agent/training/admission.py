"""Admission: which batches may be in flight, and how stale a gradient may be.

A sliding window (paper 000, 4.1.3): step t starts once step t - K - 1 is settled. Knows nothing of tensors or threads;
the pipeline asks, and waits on what it is told.
"""


class Admission:
    """Counts the steps that were started and those that are settled: [settled, started) are in flight."""

    def __init__(self, next_step: int) -> None:
        self.started = next_step
        self.settled = next_step

    def open(self, staleness: int | None) -> bool:
        """Whether the next step may start under this limit K; None where no gradient comes back, so none can be stale."""
        return staleness is None or self.unsettled <= staleness

    @property
    def unsettled(self) -> int:
        """How many are in flight. To another thread it may be too few by what was just started, and is never too many."""
        return self.started - self.settled

    def start(self) -> int:
        """Start the next step and return its number."""
        self.started += 1
        return self.started - 1

    def settle(self, step: int) -> int:
        """Settle the oldest step in flight, which is `step`; returns the staleness at which its gradient is applied."""
        assert step == self.settled < self.started
        self.settled += 1
        return self.started - 1 - step
