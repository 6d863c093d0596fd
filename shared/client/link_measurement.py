"""Measures the link to a trainer, its rates and its round trip, by a few small calls and then ever larger ones.

This needs no session and trains nothing. The uplink carries a long name to the health service, which does not know it. The
downlink carries answers of the reflection service about the trainer's own contract. The link should be idle: other traffic
lowers the rates.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from shared.client.methods import HEALTH, REFLECTION, SERVICE
from shared.client.probing import ProbeCalls

SIZES_BYTES = (16 * 1024, 64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2)
"""The sizes of the transfers. Every trainer takes a message of the largest."""
ENOUGH_SECONDS = 0.5
"""A transfer that took so long shows the rate, and no larger one follows; the next would be four times as large."""


MOST_BYTES = sum(SIZES_BYTES)
"""Largest number of bytes that a measurement sends each way, without the heads of messages."""
MOST_SECONDS = 30.0
"""The longest that measuring a link may take; on a link that works it takes about two."""
CALL_SECONDS = 5.0
"""The longest that one of its calls may take, so that a very slow link is not busy for long."""
ROUND_TRIPS = 3
"""Number of calls that measure the round trip."""


class NotMeasuredError(Exception):
    """A measurement without a figure; the message has the trainer's words."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bits per second in each direction, and the round trip; None where it is not known."""

    uplink: float | None = None
    downlink: float | None = None
    round_trip_seconds: float | None = None

    def merged_over(self, older: "LinkRates") -> "LinkRates":
        """These rates, and the older ones where these are not known."""
        return LinkRates(
            older.uplink if self.uplink is None else self.uplink,
            older.downlink if self.downlink is None else self.downlink,
            older.round_trip_seconds if self.round_trip_seconds is None else self.round_trip_seconds,
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of one direction of the link."""

    bits_per_second: float
    ended: bool = True
    """True if the transfer ended in time; otherwise the true rate is lower."""


async def measure_link(calls: ProbeCalls, sizes: Sequence[int] = SIZES_BYTES) -> LinkRates:
    """All of it, within MOST_SECONDS. A rate is None that could not be measured. Raises NotMeasuredError.

    sizes: bytes of the transfers each way, rising.
    """
    try:
        async with asyncio.timeout(MOST_SECONDS):
            round_trip_seconds = await measure_round_trip(calls, ROUND_TRIPS)
            return LinkRates(
                await _known(measure_uplink(calls, round_trip_seconds, sizes)),
                await _known(measure_downlink(calls, round_trip_seconds, sizes)),
                round_trip_seconds,
            )
    except TimeoutError:
        raise NotMeasuredError(f"it took longer than {MOST_SECONDS:g} s") from None


async def measure_round_trip(calls: ProbeCalls, count: int) -> float:
    """The median seconds of `count` small calls. Raises NotMeasuredError."""
    seconds: list[float] = []
    for _ in range(1 + count):
        started = time.monotonic()
        answer = await calls.ask(HEALTH, HealthCheckRequest())
        if answer.code is not grpc.StatusCode.OK:
            raise NotMeasuredError(answer.details)
        seconds.append(time.monotonic() - started)
    return statistics.median(seconds[1:])  # the first may have opened the connection


async def measure_uplink(calls: ProbeCalls, round_trip_seconds: float, sizes: Sequence[int] = SIZES_BYTES) -> Rate:
    """The rate to the trainer. Raises NotMeasuredError."""
    rate = 0.0
    for count in sizes:
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


async def measure_downlink(calls: ProbeCalls, round_trip_seconds: float, sizes: Sequence[int] = SIZES_BYTES) -> Rate:
    """The rate from the trainer. Raises NotMeasuredError."""
    question = ServerReflectionRequest(file_containing_symbol=SERVICE)
    one, ended = await calls.repeat(REFLECTION, question, 1)
    if not one:
        raise NotMeasuredError(ended.details)
    rate = 0.0
    for times in dict.fromkeys(max(count // one, 1) for count in sizes):
        started = time.monotonic()
        received, ended = await calls.repeat(REFLECTION, question, times)
        seconds = time.monotonic() - started
        if not received or ended.code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise NotMeasuredError(ended.details)
        rate = bits_per_second(received, seconds, round_trip_seconds)
        if seconds >= ENOUGH_SECONDS:
            break
    return Rate(rate)


def bits_per_second(count: int, seconds: float, round_trip_seconds: float) -> float:
    """The rate of a transfer of `count` bytes that took `seconds` with its answer; one round trip of them is taken off."""
    return count * 8 / max(seconds - round_trip_seconds, seconds / 2)


async def _known(measuring: Coroutine[Any, Any, Rate]) -> float | None:
    """The rate of one direction; None where it could not be measured, as the downlink for a token that may not read."""
    try:
        return (await measuring).bits_per_second
    except NotMeasuredError:
        return None


def _filled(count: int) -> HealthCheckRequest:
    return HealthCheckRequest(service=secrets.token_hex(count // 2))  # random: a tunnel may compress
