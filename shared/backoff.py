"""Waits between attempts: exponential with full jitter, so that many who lost the same peer do not come back at once.

Full jitter draws the whole wait at random below a ceiling that doubles (M. Brooker, "Exponential backoff and jitter").
"""

import random
from collections.abc import Callable


class Backoff:
    """The waits of one series of attempts."""

    def __init__(
        self, first_seconds: float, longest_seconds: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        """first_seconds, longest_seconds: ceiling of the first wait, and of all of them."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._uniform = uniform
        self._attempts = 0

    def next_seconds(self) -> float:
        """How long to wait before the next attempt."""
        ceiling = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self._attempts, 64))
        self._attempts += 1
        return self._uniform(0.0, ceiling)
