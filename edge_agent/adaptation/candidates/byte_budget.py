"""A budget of bytes for each minute."""


class ByteBudget:
    """The bytes that may still be spent. The caller gives the clock."""

    def __init__(self, bytes_per_minute: int) -> None:
        """It begins with those of one minute, and never has more."""
        self._most = float(bytes_per_minute)
        self._left = self._most
        self._seconds: float | None = None

    def left(self, seconds: float) -> float:
        """Return the bytes that may be spent now. seconds: any clock that never goes back."""
        if self._seconds is not None:
            self._left = min(self._most, self._left + (seconds - self._seconds) * self._most / 60.0)
        self._seconds = seconds
        return max(0.0, self._left)

    def spend(self, count: int) -> None:
        """Spend bytes, also more than are left: those that had to be spent."""
        self._left -= count
