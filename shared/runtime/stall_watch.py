"""The watch over a peer that owes an answer: a half-open connection has no end that one could notice, only no progress."""

import asyncio
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
_LOOKS = 64
"""Largest number of looks for a stall in the time that makes one."""


class StallWatch:
    """Tells once that the peer has been silent for too long. Made and stopped on the event loop."""

    def __init__(
        self, quiet_seconds: Callable[[], float], limit_seconds: float, give_up: Callable[[float], object]
    ) -> None:
        """quiet_seconds: how long the peer has been silent although it owes an answer; 0 while it owes none.

        give_up: called with limit_seconds, once that is reached. A watch begins at once, and ends then or by `stop`.
        """
        self._quiet_seconds = quiet_seconds
        self._limit_seconds = limit_seconds
        self._give_up = give_up
        self._timer = asyncio.get_running_loop().call_later(limit_seconds, self._look)

    def stop(self) -> None:
        """End the watch; nothing happens where it has ended."""
        self._timer.cancel()

    def _look(self) -> None:
        quiet = self._quiet_seconds()
        if quiet < self._limit_seconds:
            rest = max(
                self._limit_seconds - quiet, self._limit_seconds / _LOOKS
            )  # a rounding error must not make it look endlessly
            self._timer = asyncio.get_running_loop().call_later(rest, self._look)
            return
        _log.warning("nothing is heard of what was sent", seconds=round(quiet, 1))
        self._give_up(self._limit_seconds)
