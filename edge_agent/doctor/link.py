"""Checks of the way to a trainer: its rate, its round trip, their meaning for a run, and whether trainers can dial each
other.

A trainer is asked about all those behind it: a placement, or a replacement, may want any such link.
"""

import grpc
from google.protobuf.message import DecodeError

from edge_agent.doctor.finding import Finding, advise, fine, fix, skipped
from shared.client.config import TrainerAddressConfig
from shared.client.link_measurement import (
    NotMeasuredError,
    measure_downlink,
    measure_round_trip,
    measure_uplink,
)
from shared.client.methods import method_path
from shared.client.probing import ProbeAnswer, ProbeCalls
from shared.errors import one_line
from shared.registry import codec_of_bits
from shared.wire.isthmus.v1 import trainer_pb2 as pb

ROUND_TRIPS = 10
LONG_ROUND_TRIP_SECONDS = 0.05
"""A round trip from which on a step at K = 0, which waits for it, is slow."""
NARROW_BITS_PER_SECOND = 2e6
"""Below it a feature of a megabyte is four seconds under way."""
_NARROW_CODEC = codec_of_bits(4, like="fp32")
"""Codec that is recommended below that rate."""


async def check_round_trip(calls: ProbeCalls) -> tuple[Finding, float]:
    """The median of a few empty calls, and the finding about it."""
    try:
        seconds = await measure_round_trip(calls, ROUND_TRIPS)
    except NotMeasuredError as why:
        return skipped("round trip", str(why)), 0.0
    return judge_round_trip(seconds), seconds


def judge_round_trip(seconds: float) -> Finding:
    """Judge a round-trip time by its meaning for a run."""
    shown = f"{seconds * 1000:.1f} ms"
    if seconds >= LONG_ROUND_TRIP_SECONDS:
        remedy = "set deployment.staleness to 1 or more, so that steps need not wait for it"
        return advise("round trip", shown, remedy)
    return fine("round trip", shown)


async def check_uplink(calls: ProbeCalls, round_trip_seconds: float) -> Finding:
    """Measure the way up."""
    try:
        rate = await measure_uplink(calls, round_trip_seconds)
    except NotMeasuredError as why:
        return skipped("uplink", f"not measured: {why}")
    return judge_rate("uplink", rate.bits_per_second, "at least" if rate.ended else "less than")


async def check_downlink(calls: ProbeCalls, round_trip_seconds: float) -> Finding:
    """Measure the way down."""
    try:
        rate = await measure_downlink(calls, round_trip_seconds)
    except NotMeasuredError as why:
        return skipped("downlink", f"not measured: {why}")
    return judge_rate("downlink", rate.bits_per_second)


def judge_rate(direction: str, rate: float, known: str = "at least") -> Finding:
    """Judge a rate in bits per second by its meaning for a run. known: the kind of bound that it is; a busy trainer
    answers slowly."""
    shown = f"{known} {rate / 1e6:.3g} Mbit/s" if rate < 1e9 else "1 Gbit/s or more"
    if rate < NARROW_BITS_PER_SECOND:
        key = "deployment.codec" if direction == "uplink" else "deployment.downlink_codec"
        return advise(
            direction,
            shown,
            f'set {key} = "{_NARROW_CODEC}" or so, and cut where features are small (edge-agent model)',
        )
    return fine(direction, shown)


async def check_links(
    calls: ProbeCalls, others: tuple[TrainerAddressConfig, ...], needed: TrainerAddressConfig | None
) -> list[Finding]:
    """Check that a trainer can dial others. needed: the one that it dials by the placement, as far as that is known."""
    request = pb.CheckPeersRequest(addresses=[other.address for other in others])
    answer = await calls.ask(method_path("CheckPeers"), request)
    return judge_links(answer, others, needed)


def judge_links(
    answer: ProbeAnswer, others: tuple[TrainerAddressConfig, ...], needed: TrainerAddressConfig | None
) -> list[Finding]:
    """answer: of CheckPeers about the others, in order. A link that is needed has to be; any other is advice."""
    try:
        checks = list(pb.CheckPeersResponse.FromString(answer.data).checks)
    except DecodeError:
        checks = []
    if answer.code is not grpc.StatusCode.OK or len(checks) != len(others):
        return [skipped(f"link to {other.name}", f"the trainer does not say: {answer.details}") for other in others]
    return [_judge(check, other, is_needed=other is needed) for check, other in zip(checks, others, strict=True)]


def _judge(check: pb.PeerCheck, other: TrainerAddressConfig, *, is_needed: bool) -> Finding:
    name = f"link to {other.name}"
    if check.allowed and not check.reason:
        return fine(name, f"it can dial {other.address}")
    if not check.allowed:
        found, remedy = f"it may not dial {other.address}", f"add {other.address} to peers.allowed of that trainer"
    else:
        found = f"it cannot dial {other.address}: {one_line(check.reason)}"
        remedy = "see that the two trainers reach and trust each other (a firewall, peers.tls)"
    if is_needed:
        return fix(name, found, remedy)
    return advise(name, found, f"{remedy}, should blocks move so, as when a trainer is replaced")
