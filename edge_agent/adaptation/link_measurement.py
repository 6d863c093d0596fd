"""What the way to the trainer carries and how long it takes: a few small calls, then ever larger ones, up to a bound.

No session is needed and nothing is trained. Up goes a long name to the health service, which does not know it; down come
answers of the reflection service about the trainer's own contract. One connection on an idle link; what other traffic takes
is not there to be measured.
"""

import asyncio
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from shared.client.methods import HEALTH, REFLECTION, SERVICE
from shared.client.probing import ProbeCalls

SIZES_BYTES = (16 * 1024, 64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2)
"""The largest is what every trainer takes in one message."""
ENOUGH_SECONDS = 0.5
"""A transfer that took so long says what the link carries; the next would be four times as large."""


class NotMeasuredError(Exception):
    """The trainer's own words for why there is no figure."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one direction carries."""

    bits_per_second: float
    ended: bool = True
    """Whether the transfer ended in time; otherwise the rate is less than that."""


async def measure_round_trip(calls: ProbeCalls, count: int) -> float:
    """The median seconds of so many empty calls. Raises NotMeasuredError."""
    seconds: list[float] = []
    for _ in range(1 + count):
        started = time.monotonic()
        answer = await calls.ask(HEALTH, HealthCheckRequest())
        if answer.code is not grpc.StatusCode.OK:
            raise NotMeasuredError(answer.details)
        seconds.append(time.monotonic() - started)
    return statistics.median(seconds[1:])  # the first may have brought the connection about


async def measure_uplink(calls: ProbeCalls, round_trip_seconds: float) -> Rate:
    """The way up. Raises NotMeasuredError."""
    rate = 0.0
    for count in SIZES_BYTES:
        request = await asyncio.to_thread(_filled, count)
        started = time.monotonic()
        answer = await calls.ask(HEALTH, request)
        seconds = time.monotonic() - started
        if answer.code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise NotMeasuredError(answer.details)
        rate = bits_per_second(count, seconds, round_trip_seconds)
        if answer.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Rate(rate, ended=False)
        if seconds >= ENOUGH_SECONDS:
            break
    return Rate(rate)


async def measure_downlink(calls: ProbeCalls, round_trip_seconds: float) -> Rate:
    """The way down. Raises NotMeasuredError."""
    question = ServerReflectionRequest(file_containing_symbol=SERVICE)
    one, why = await _received(calls.repeat(REFLECTION, question, 1))
    if not one:
        raise NotMeasuredError(why)
    rate = 0.0
    for count in SIZES_BYTES:
        started = time.monotonic()
        received, _ = await _received(calls.repeat(REFLECTION, question, max(count // one, 1)))
        seconds = time.monotonic() - started
        rate = bits_per_second(received, seconds, round_trip_seconds)
        if seconds >= ENOUGH_SECONDS:
            break
    return Rate(rate)


def bits_per_second(count: int, seconds: float, round_trip_seconds: float) -> float:
    """The rate of a transfer of `count` bytes that took so long, answer included; a round trip of it was no transfer."""
    return count * 8 / max(seconds - round_trip_seconds, seconds / 2)


def _filled(count: int) -> HealthCheckRequest:
    return HealthCheckRequest(service=secrets.token_hex(count // 2))  # random: a tunnel may compress


async def _received(answers: Any) -> tuple[int, str]:
    """Bytes that came before the stream ended, and why it did where that was not all."""
    received = 0
    try:
        async for answer in answers:
            received += len(answer)
    except grpc.aio.AioRpcError as failure:
        return received, failure.details() or failure.code().name
    return received, ""
