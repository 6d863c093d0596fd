"""A status again and again, for as long as its process goes on."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from shared.control.choices import LEAST_SECONDS, MOST_SECONDS
from shared.transport.rpc.status import StatusError

DEFAULT_SECONDS = 1.0
T = TypeVar("T")


async def watch(interval: Duration | None, status: Callable[[], T], ended: asyncio.Event) -> AsyncGenerator[T, None]:
    """What `status` says at once, after every interval, and a last time when all has ended.

    interval: None for a second. Raises StatusError for one that cannot be.
    """
    seconds = DEFAULT_SECONDS if interval is None else interval.seconds + interval.nanos / 1e9
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the interval is {seconds:g} s; it must be from {LEAST_SECONDS} to {MOST_SECONDS:g} s",
        )
    while not ended.is_set():
        yield status()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
    yield status()
