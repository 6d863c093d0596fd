"""The waits of a group's present step: for how long slices and members have been waited for, and which have been long enough.

Pure: who asks says what waits, and what time it is.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from shared.placement import BlockSlice

LEAST_SECONDS, STEPS_LONG = 10.0, 5
"""Time for which a step waits for a member until that counts as late: this, or so many steps where they take longer."""
_STEPS_KNOWN = 20


class Waits:
    """The slices that wait for late members at one time."""

    def __init__(self, seconds: float | None) -> None:
        """seconds: the longest time that a slice waits; None bounds none."""
        self._seconds = seconds
        self._since: dict[tuple[int, BlockSlice], float] = {}
        """Time since when each waits, by its step and slice."""

    def note(self, step: int, slices: Iterable[BlockSlice], now: float) -> None:
        """Note the slices that wait for some members at a step. Others do not wait any more."""
        self._since = {(step, one): self._since.get((step, one), now) for one in slices}

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the first slice has waited long enough; None if none will have."""
        if self._seconds is None or not self._since:
            return None
        return max(min(self._since.values()) + self._seconds - now, 0.0)

    def over(self, now: float) -> list[tuple[int, BlockSlice]]:
        """List the steps and slices that have waited long enough."""
        return [key for key, since in self._since.items() if self._seconds is not None and now >= since + self._seconds]


class LateMembers:
    """The ranks for which a group waits longer than its steps take."""

    def __init__(self, longest_wait_seconds: float) -> None:
        """longest_wait_seconds: see `GroupConfig`."""
        self._longest_wait_seconds = longest_wait_seconds
        self._step: int | None = None
        self._began_seconds = 0.0
        """Time of the look that has first seen the present step."""
        self._taken = deque[float](maxlen=_STEPS_KNOWN)
        """Seconds that a step took, as the last looks have seen."""
        self.since: Mapping[int, float] = {}
        """By rank that is late, the time since when the present step waits for it."""

    def look(self, step: int, missing: Iterable[int], begun: Mapping[int, float], now: float) -> list[int]:
        """Look at a step; list the ranks that are late since this look. begun: times at which ranks have begun."""
        if step != self._step:
            if self._step is not None and step > self._step:
                self._taken.append((now - self._began_seconds) / (step - self._step))
            self._step, self._began_seconds = step, now
        patience = max(LEAST_SECONDS, STEPS_LONG * max(self._taken, default=0.0))
        patience = min(patience, self._longest_wait_seconds)
        since = {rank: max(self._began_seconds, begun.get(rank, 0.0)) for rank in missing}
        before, self.since = self.since, {rank: at for rank, at in since.items() if now - at >= patience}
        return [rank for rank in self.since if rank not in before]

    def over(self, now: float) -> list[int]:
        """List the ranks for which the step has waited for as long as it may."""
        return [rank for rank, since in self.since.items() if now - since >= self._longest_wait_seconds]

    def forget(self) -> None:
        """Have nobody be late: the group does not train."""
        self._step, self.since = None, {}
