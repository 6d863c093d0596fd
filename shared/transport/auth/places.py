"""Places for those who have shown nothing yet, such as the probe of a load balancer or a new connection.

Whoever holds one open without a word must not keep others out. So each has a few seconds, and where all places are taken
the newest gets the place of the oldest: one that goes on at once is never the oldest.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from shared.transport.rpc.status import StatusError


class Places:
    """Gives places, and takes them back."""

    def __init__(self, most: int, seconds: float) -> None:
        """most: places at one time. seconds: longest time in one."""
        self._most = most
        self._seconds = seconds
        self._limits: dict[asyncio.Timeout, None] = {}  # the oldest first

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one. Raises StatusError out of the block when it takes too long or a newer one needs the place."""
        loop = asyncio.get_running_loop()
        if len(self._limits) >= self._most:
            oldest = next(iter(self._limits))
            del self._limits[oldest]
            if not oldest.expired():  # else it is ending already
                oldest.reschedule(loop.time())
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                self._limits[limit] = None
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller brought no message in time") from None
        finally:
            self._limits.pop(limit, None)
