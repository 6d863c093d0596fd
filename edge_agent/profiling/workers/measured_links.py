"""The links of several workers, measured: those of this device by itself, those between trainers by the nearer of the two.

Links that share a segment, such as the access line of a device, are found by measuring two at once.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import combinations

import structlog

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning.profile import Hop
from edge_agent.profiling.workers.measured_parts import LinkSection
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Transfer
from shared.client.credentials import trainer_access
from shared.client.link_measurement import CALL_SECONDS, NotMeasuredError, measure_link
from shared.client.probing import ProbeCalls
from shared.concurrency.tasks import gathered
from shared.errors import UnreachableError
from shared.placement import AGENT, held_blocks
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
LEAST_PART = 0.7
"""Part of its own rate that a link keeps at least beside one with which it shares nothing. Sharing usually leaves half."""
MEASURED = 2
"""Measurements of each link while the other one is busy, at least: the ways up and down of two begin to differ."""


async def measured_link(session: OpenSession, near: str, far: str) -> LinkSection:
    """Measure the link between two workers. near: the worker that dials. Where trainers measure it, the session is
    joined.

    Raises IsthmusError: RefusedError for a trainer that may not dial the other one, UnreachableError where it cannot.
    """
    if near == AGENT:
        return await _from_here(session.experiment, far)
    trainer, some_block = session.members[near], held_blocks(session.placement, far)[0]
    peer = await session.members[far].offered(near, Transfer({some_block: False}))
    found = await trainer.client.measure_link(
        pb.MeasureLinkRequest(session_id=trainer.session_id, fence=session.state.fence, peer=peer)
    )
    downlink = found.downlink if found.HasField("downlink") else None
    return _measured(near, far, found.uplink, downlink, found.round_trip_seconds)


async def _from_here(experiment: Experiment, far: str) -> LinkSection:
    config = experiment.config
    (trainer,) = (trainer for trainer in config.all_trainers if trainer.name == far)
    access = trainer_access(trainer, config.tls)
    async with ProbeCalls(trainer.address, access, config.link, CALL_SECONDS) as calls:
        try:
            found = await measure_link(calls)
            if found.uplink is None:
                raise NotMeasuredError("it takes no bytes")
        except NotMeasuredError as why:
            raise UnreachableError(f"the link from {AGENT!r} to {far!r} cannot be measured: {why}") from why
    return _measured(AGENT, far, found.uplink, found.downlink, found.round_trip_seconds or 0.0)


def _measured(near: str, far: str, uplink: float, downlink: float | None, round_trip_seconds: float) -> LinkSection:
    if downlink is None:
        _log.warning("the downlink cannot be measured; it is taken to carry as much as the uplink", near=near, far=far)
        downlink = uplink
    return LinkSection(uplink=uplink, downlink=downlink, round_trip_seconds=round_trip_seconds)


async def shared_segments(
    measure: Callable[[str, str], Awaitable[LinkSection]], alone: Mapping[Hop, LinkSection]
) -> list[list[int]]:
    """Return the numbers of the links that share a segment, a list a segment. Raises IsthmusError.

    measure: measures the link between two workers. alone: what each link carries while the others are idle.
    """
    hops = list(alone)
    pairs = [
        [one, other]
        for one, other in combinations(range(len(hops)), 2)
        if await _hinder_each_other(measure, {hops[number]: alone[hops[number]] for number in (one, other)})
    ]
    everyone = list(range(len(hops)))
    return [everyone] if len(pairs) > 1 and len(pairs) == len(hops) * (len(hops) - 1) // 2 else pairs


async def _hinder_each_other(
    measure: Callable[[str, str], Awaitable[LinkSection]], alone: Mapping[Hop, LinkSection]
) -> bool:
    """Tell whether one of two links carries clearly less while the other is measured, in either direction."""
    found: dict[Hop, list[LinkSection]] = {hop: [] for hop in alone}

    async def keep_busy(hop: Hop) -> None:
        while any(len(links) < MEASURED for links in found.values()):
            found[hop].append(await measure(*hop))

    await gathered(*map(keep_busy, alone))
    return any(
        min(link.uplink for link in links) < LEAST_PART * alone[hop].uplink
        or min(link.downlink for link in links) < LEAST_PART * alone[hop].downlink
        for hop, links in found.items()
    )
