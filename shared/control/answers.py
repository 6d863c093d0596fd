"""Answers that the control services of both sides share: a status again and again, a deployment, the level of the log."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from shared.control.choices import LEAST_SECONDS, MOST_SECONDS
from shared.placement import Deployment
from shared.registry import codec_bits
from shared.telemetry.logs import LEVELS, log_level, set_log_level
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.control_pb2 import DeploymentStatus, LogLevel

DEFAULT_SECONDS = 1.0
T = TypeVar("T")


async def watch(interval: Duration | None, status: Callable[[], T], ended: asyncio.Event) -> AsyncGenerator[T, None]:
    """Yield `status()` at once, after every interval, and a last time when all has ended.

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


_LEVELS = {LogLevel.Value(f"LOG_LEVEL_{name.upper()}"): name for name in LEVELS}


def level_now() -> LogLevel.ValueType:
    """Return the level of the log."""
    return LogLevel.Value(f"LOG_LEVEL_{log_level().upper()}")


def set_level(level: LogLevel.ValueType) -> LogLevel.ValueType:
    """Log this level from now on. Returns the previous one. Raises StatusError for no level."""
    if level not in _LEVELS:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT, f"the level must be one of {', '.join(LogLevel.keys()[1:])}"
        )
    previous = level_now()
    set_log_level(_LEVELS[level])
    return previous


def deployment_status(deployment: Deployment, blocks: int) -> DeploymentStatus:
    """A deployment that is in force. blocks: of the whole model."""
    return DeploymentStatus(
        edge_blocks=deployment.edge_blocks,
        blocks=blocks,
        staleness_limit=deployment.staleness,
        codec=deployment.codec,
        bits=codec_bits(deployment.codec),
        downlink_codec=deployment.downlink_codec,
        downlink_bits=codec_bits(deployment.downlink_codec),
    )
