"""A limit on how long the trainer may make no progress: it starts again with every sign of progress."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.errors import UnreachableError


class IdleTimeout:
    """The limit on a block that is under way."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds

    def renew(self) -> None:
        """There was progress: the time starts again."""
        self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def pause(self) -> None:
        """Nobody waits for the trainer: until `renew` there is no limit."""
        self._limit.reschedule(None)


@asynccontextmanager
async def idle_timeout(trainer: str, call: str, seconds: float, key: str) -> AsyncIterator[IdleTimeout]:
    """Limit a block. Raises UnreachableError out of it after so many seconds without progress.

    trainer: its address, for the error. call: the name of the call. key: as for `unanswered`.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield IdleTimeout(limit, seconds)
    except TimeoutError as cause:
        raise unanswered(trainer, call, seconds, key) from cause


def unanswered(trainer: str, call: str, seconds: float, key: str) -> UnreachableError:
    """The error for a trainer that does not answer. key: the setting that says for how long it may be silent, if one does."""
    named = f"{call}, {key}" if key else call
    return UnreachableError(f"the trainer at {trainer} did not answer for {seconds:g} s ({named})")
