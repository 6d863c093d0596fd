"""A limit on how long the trainer may make no progress: it starts again with every sign of progress."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.errors import UnansweredError, UnreachableError

MOST_SECONDS_OF_WORK = 24 * 3600.0
"""Longest time that a trainer may report work: above the time of any transfer of blocks, or of training a copy."""


class IdleTimeout:
    """The limit on a block that is under way."""

    def __init__(self, limit: asyncio.Timeout, seconds: float, most_seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + most_seconds

    @property
    def is_spent(self) -> bool:
        """Tell whether the block has taken its whole time, with or without progress."""
        return asyncio.get_running_loop().time() >= self._deadline

    def renew(self) -> None:
        """There was progress: the time starts again."""
        self._limit.reschedule(min(asyncio.get_running_loop().time() + self._seconds, self._deadline))

    def pause(self) -> None:
        """Pause the timeout: until `renew` there is no limit."""
        self._limit.reschedule(None)


@asynccontextmanager
async def idle_timeout(
    trainer: str, call: str, seconds: float, key: str, most_seconds: float = math.inf
) -> AsyncIterator[IdleTimeout]:
    """Limit a block. Raises UnreachableError out of it after so many seconds without progress.

    trainer: its address, for the error. call: the name of the call. key: as for `unanswered`. most_seconds: the longest that
    the block may take with all progress.
    """
    limited: IdleTimeout | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            limited = IdleTimeout(limit, seconds, most_seconds)
            yield limited
    except TimeoutError as cause:
        if limited is not None and limited.is_spent:
            raise UnreachableError(
                f"the trainer at {trainer} was not done after {most_seconds:g} s ({call}), though it said that it went on"
            ) from cause
        raise unanswered(trainer, call, seconds, key) from cause


def unanswered(trainer: str, call: str, seconds: float, key: str) -> UnansweredError:
    """The error for a trainer that does not answer. key: the setting that says for how long it may be silent, if one does."""
    named = f"{call}, {key}" if key else call
    return UnansweredError(f"the trainer at {trainer} did not answer for {seconds:g} s ({named})")
