"""A look at measurements once a second, for as long as a run lasts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from shared.concurrency.tasks import meanwhile

INTERVAL_SECONDS = 1.0


def polling(look: Callable[[float], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
    """Call `look` with the seconds of time.monotonic, over and over while the body runs."""
    return meanwhile(_look_on(look))


async def _look_on(look: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        await look(time.monotonic())
