"""Places for calls without authentication, such as the probe of a load balancer.

A caller that holds such a call open without a message must not keep others out. So a call has a few seconds, and where
all places are taken the newest call gets the place of the oldest: a real probe sends its message at once and is never
the oldest.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from shared.transport.rpc.status import StatusError

PROBE_SECONDS = 5.0
"""Longest time from the beginning of a probe to its answer."""
MOST_PROBES = 256
"""Probes at one time. Each holds a few kilobytes."""


class Probes:
    """Gives places to probes, and takes them back."""

    def __init__(self) -> None:
        self._limits: dict[asyncio.Timeout, None] = {}  # the oldest first

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for one probe. Raises StatusError out of the block when it takes too long or a newer one needs the place."""
        loop = asyncio.get_running_loop()
        if len(self._limits) >= MOST_PROBES:
            oldest = next(iter(self._limits))
            del self._limits[oldest]
            if not oldest.expired():  # else it is ending already
                oldest.reschedule(loop.time())
        limit = asyncio.timeout(PROBE_SECONDS)
        try:
            async with limit:
                self._limits[limit] = None
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, "the probe brought no message in time") from None
        finally:
            self._limits.pop(limit, None)
