"""The time for which blocks of a group wait for late members. Pure."""

from collections.abc import Iterable


class Waits:
    """The blocks that wait at one time."""

    def __init__(self, seconds: float | None) -> None:
        """seconds: the longest time that a block waits; None bounds none."""
        self._seconds = seconds
        self._since: dict[tuple[int, int], float] = {}
        """Time since when each waits, by its step and block."""

    def note(self, step: int, blocks: Iterable[int], now: float) -> None:
        """Note the blocks that wait for some members at a step. Others do not wait any more."""
        self._since = {(step, block): self._since.get((step, block), now) for block in blocks}

    def forget(self) -> None:
        """Have no block wait."""
        self._since = {}

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the first block has waited long enough; None if none will have."""
        if self._seconds is None or not self._since:
            return None
        return max(min(self._since.values()) + self._seconds - now, 0.0)

    def over(self, now: float) -> list[tuple[int, int]]:
        """List the steps and blocks that have waited long enough."""
        return [key for key, since in self._since.items() if self._seconds is not None and now >= since + self._seconds]
