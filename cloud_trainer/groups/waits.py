"""The time for which slices of blocks in a group wait for late members. Pure."""

from collections.abc import Iterable

from shared.placement import BlockSlice


class Waits:
    """The slices that wait at one time."""

    def __init__(self, seconds: float | None) -> None:
        """seconds: the longest time that a slice waits; None bounds none."""
        self._seconds = seconds
        self._since: dict[tuple[int, BlockSlice], float] = {}
        """Time since when each waits, by its step and slice."""

    def note(self, step: int, slices: Iterable[BlockSlice], now: float) -> None:
        """Note the slices that wait for some members at a step. Others do not wait any more."""
        self._since = {(step, one): self._since.get((step, one), now) for one in slices}

    def forget(self) -> None:
        """Have no slice wait."""
        self._since = {}

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the first slice has waited long enough; None if none will have."""
        if self._seconds is None or not self._since:
            return None
        return max(min(self._since.values()) + self._seconds - now, 0.0)

    def over(self, now: float) -> list[tuple[int, BlockSlice]]:
        """List the steps and slices that have waited long enough."""
        return [key for key, since in self._since.items() if self._seconds is not None and now >= since + self._seconds]
