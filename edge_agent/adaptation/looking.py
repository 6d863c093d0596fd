"""Looks once a second at what was measured, for as long as a run lasts."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

INTERVAL_SECONDS = 1.0


@asynccontextmanager
async def looking(look: Callable[[float], None]) -> AsyncIterator[None]:
    """Call `look` with the seconds of time.monotonic, over and over while the body runs."""
    task = asyncio.create_task(_look_on(look))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _look_on(look: Callable[[float], None]) -> None:
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        look(time.monotonic())
