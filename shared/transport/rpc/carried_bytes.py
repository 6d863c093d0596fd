"""Bytes carried both ways between a socket and a stream of messages, as they come. Nothing of them is looked at.

What one side does not take stays with the other: each direction holds one chunk, and the buffers of the two connections.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

CARRIED_BYTES = 64 * 1024
"""Most bytes of one message."""
WAITING_BYTES = 512 * 1024
"""Most bytes of an agent that a relay holds: those that it has sent, and that have not gone on to the other trainer."""


async def carry_bytes(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    receive: Callable[[], Awaitable[bytes | None]],
    send: Callable[[bytes], Awaitable[None]],
    idle_seconds: float,
) -> None:
    """Carry bytes until one of the two ends, or nothing has come for so long.

    receive: returns the next bytes of the stream; None at its end. Raises the error of a message, and none of the socket.
    """
    loop = asyncio.get_running_loop()
    idle = asyncio.timeout(idle_seconds)

    async def outward() -> None:
        while (data := await receive()) is not None:
            idle.reschedule(loop.time() + idle_seconds)
            writer.write(data)
            await writer.drain()

    async def inward() -> None:
        while data := await reader.read(CARRIED_BYTES):
            idle.reschedule(loop.time() + idle_seconds)
            await send(data)

    try:
        async with idle:
            await _until_the_first_ends(outward(), inward())
    except TimeoutError:
        if not idle.expired():
            raise


async def _until_the_first_ends(*works: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if not isinstance(task.exception(), OSError):  # the socket has gone, which ends it
            task.result()
