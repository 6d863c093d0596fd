"""What the way to the trainer carries and how long it takes: a few small calls, then ever larger ones, up to a bound.

No session is opened and nothing is trained. Up goes a long name to the health service, which does not know it; down come
answers of the reflection service about the trainer's own contract. One connection on an idle link; what other traffic takes
is not there to be measured.
"""

import secrets
import statistics
import time
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from edge_agent.doctor.asking import HEALTH, REFLECTION, SERVICE, Asking
from edge_agent.doctor.finding import Finding, advise, fine, skipped

ROUND_TRIPS = 10
LONG_ROUND_TRIP_SECONDS = 0.05
"""From here on a step at K = 0, which waits for a round trip, is slow because of it."""
SIZES_BYTES = (64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2)
"""The largest is what every trainer takes in one message."""
ENOUGH_SECONDS = 0.5
"""A transfer that took so long says what the link carries; the next would be four times as large."""
NARROW_BITS_PER_SECOND = 2e6
"""Below it a feature of a megabyte is four seconds under way."""


async def check_round_trip(asking: Asking) -> tuple[Finding, float]:
    """The median of a few empty calls, and the finding about it."""
    seconds: list[float] = []
    for _ in range(1 + ROUND_TRIPS):
        started = time.monotonic()
        answer = await asking.ask(HEALTH, HealthCheckRequest())
        if answer.code is not grpc.StatusCode.OK:
            return skipped("round trip", answer.details), 0.0
        seconds.append(time.monotonic() - started)
    median = statistics.median(seconds[1:])  # the first may have brought the connection about
    return judge_round_trip(median), median


def judge_round_trip(seconds: float) -> Finding:
    """What a round trip of so long means for a run."""
    shown = f"{seconds * 1000:.1f} ms"
    if seconds >= LONG_ROUND_TRIP_SECONDS:
        remedy = "set deployment.staleness to 1 or more, so that steps need not wait for it"
        return advise("round trip", shown, remedy)
    return fine("round trip", shown)


async def check_uplink(asking: Asking, round_trip_seconds: float) -> Finding:
    """Measure the way up."""
    rate = 0.0
    for count in SIZES_BYTES:
        request = HealthCheckRequest(service=secrets.token_hex(count // 2))  # random: a tunnel may compress
        started = time.monotonic()
        answer = await asking.ask(HEALTH, request)
        seconds = time.monotonic() - started
        if answer.code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED):
            return skipped("uplink", f"not measured: {answer.details}")
        rate = bits_per_second(count, seconds, round_trip_seconds)
        if answer.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return judge_rate("uplink", rate, "less than")
        if seconds >= ENOUGH_SECONDS:
            break
    return judge_rate("uplink", rate)


async def check_downlink(asking: Asking, round_trip_seconds: float) -> Finding:
    """Measure the way down."""
    question = ServerReflectionRequest(file_containing_symbol=SERVICE)
    one, why = await _received(asking.repeat(REFLECTION, question, 1))
    if not one:
        return skipped("downlink", f"not measured: {why}")
    rate = 0.0
    for count in SIZES_BYTES:
        started = time.monotonic()
        received, _ = await _received(asking.repeat(REFLECTION, question, max(count // one, 1)))
        seconds = time.monotonic() - started
        rate = bits_per_second(received, seconds, round_trip_seconds)
        if seconds >= ENOUGH_SECONDS:
            break
    return judge_rate("downlink", rate)


async def _received(answers: Any) -> tuple[int, str]:
    """Bytes that came before the stream ended, and why it did where that was not all."""
    received = 0
    try:
        async for answer in answers:
            received += len(answer)
    except grpc.aio.AioRpcError as failure:
        return received, failure.details() or failure.code().name
    return received, ""


def bits_per_second(count: int, seconds: float, round_trip_seconds: float) -> float:
    """The rate of a transfer of `count` bytes that took so long, answer included; a round trip of it was no transfer."""
    return count * 8 / max(seconds - round_trip_seconds, seconds / 2)


def judge_rate(direction: str, rate: float, known: str = "at least") -> Finding:
    """What a rate in bits per second means for a run. known: which kind of bound it is; a busy trainer answers slowly."""
    shown = f"{known} {rate / 1e6:.3g} Mbit/s" if rate < 1e9 else "1 Gbit/s or more"
    if rate < NARROW_BITS_PER_SECOND:
        key = "deployment.codec" if direction == "uplink" else "deployment.downlink_codec"
        return advise(
            direction, shown, f'set {key} = "uniform4" or so, and cut where features are small (edge-agent model)'
        )
    return fine(direction, shown)
