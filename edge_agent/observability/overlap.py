"""Overlap of a step: the part of what the links carried of shared blocks that passed beside this device's computing."""

import math


class Overlap:
    """The times in which links carried weights or gradients for one step, by one clock."""

    def __init__(self) -> None:
        self._carried: list[tuple[float, float]] = []
        self._counted_until = -math.inf

    def carry(self, begin_seconds: float, end_seconds: float) -> None:
        """Note a message."""
        self._carried.append((begin_seconds, end_seconds))

    def forget(self) -> None:
        """Forget what was carried, because it belongs to no step that is timed."""
        self._carried.clear()

    def end_step(self, exposed_seconds: float) -> float | None:
        """Return the part that did not hold up the step, and begin the next one; None if nothing was carried.

        exposed_seconds: of the step, in which the device computed nothing. What passed at once on several ways counts once.
        """
        seconds = 0.0
        for begin, end in sorted(self._carried):
            seconds += max(0.0, end - max(begin, self._counted_until))
            self._counted_until = max(end, self._counted_until)
        self._carried.clear()
        return max(0.0, 1.0 - exposed_seconds / seconds) if seconds else None
