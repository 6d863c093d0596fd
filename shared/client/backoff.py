"""Waits between attempts, with full jitter, so that many agents that lost the same peer do not come back at once.

Full jitter draws the whole wait at random below a ceiling (M. Brooker, "Exponential backoff and jitter"). The ceiling
doubles up to one that notices a short absence soon, and from there grows with the time that the peer has been away.
"""

import random
from collections.abc import Callable

_DICE = random.Random()
"""Generator of the waits alone: a draw from Python's own would change what a user's data set draws from that meanwhile, on
another thread."""
AWAY_SHARE = 0.05
"""A long wait is at most this share of the absence so far, so the end of an absence is noticed at most so much later."""


class Backoff:
    """The waits of one series of attempts."""

    def __init__(
        self,
        first_seconds: float,
        soon_seconds: float,
        longest_seconds: float,
        uniform: Callable[[float, float], float] = _DICE.uniform,
    ) -> None:
        """first_seconds, soon_seconds, longest_seconds: ceilings of the first wait, of those in a short absence, of all."""
        self._first_seconds = first_seconds
        self._soon_seconds = soon_seconds
        self._longest_seconds = longest_seconds
        self._uniform = uniform
        self._attempts = 0

    def next_seconds(self, away_seconds: float) -> float:
        """Return the seconds to wait before the next attempt. away_seconds: time since the peer was last there."""
        doubled = min(self._soon_seconds, self._first_seconds * 2.0 ** min(self._attempts, 64))
        self._attempts += 1
        return self._uniform(0.0, min(self._longest_seconds, max(doubled, AWAY_SHARE * away_seconds)))
