"""Probes of trainers without a session: what a new session would find there, the rates of the link, and the time of blocks.

None sends a weight or a sample.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import WorkerProfile
from edge_agent.sessions.messages import abandon_at, opening_request
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import TrainerAccess
from shared.client.link_measurement import CALL_SECONDS, SIZES_BYTES, LinkRates, NotMeasuredError, measure_link
from shared.client.probing import ProbeCalls
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, RefusedError, UnreachableError
from shared.training.step_seconds import totals
from shared.wire.isthmus.v1 import trainer_pb2 as pb

MEASURED_STEPS = 4
"""Steps whose time is measured at a candidate: other sessions wait for them."""


@dataclass(frozen=True)
class Probed:
    """The answer of one trainer."""

    seconds: float
    """Time at which it came, by time.monotonic."""
    round_trip_seconds: float
    answer: pb.ProbeResponse

    @property
    def carried_bytes(self) -> int:
        """Return about as many bytes as the messages had."""
        return 2 * self.answer.ByteSize() + 64


async def probe(client: TrainerClient, factory: str) -> Probed:
    """Ask a trainer what a session with a model of this factory would find. Raises IsthmusError."""
    began = time.monotonic()
    answer = await client.probe(factory)
    ended = time.monotonic()
    return Probed(ended, ended - began, answer)


def check_would(probed: Probed, name: str, factory: str, *, is_member: bool = False) -> None:
    """Check that a trainer would train with this agent. Raises the IsthmusError with which it would not.

    is_member: true for one that has a session of the run already.
    """
    found = probed.answer
    if found.stopping:
        raise UnreachableError(f"trainer {name!r} is about to stop")
    if not found.model_allowed:
        raise RefusedError(f"trainer {name!r} does not allow {factory!r} (models.allowed)")
    if not is_member and not found.free_sessions:
        raise BusyError(f"trainer {name!r} has no room for another session")


async def measured_rates(
    config: EdgeConfig, trainer: TrainerAddressConfig, access: TrainerAccess, most_bytes: float
) -> tuple[LinkRates, int]:
    """Measure the link to a trainer with as many bytes at most. Returns the rates, empty where that fails, and the bytes."""
    sizes = affordable(most_bytes)
    if not sizes:
        return LinkRates(), 0
    async with ProbeCalls(trainer.address, access, config.link, CALL_SECONDS) as calls:
        try:
            found = await measure_link(calls, sizes)
        except NotMeasuredError:
            found = LinkRates()
        return found, calls.carried_bytes


def affordable(most_bytes: float) -> Sequence[int]:
    """Return the sizes of transfers, both ways, that take as many bytes at most. The largest shows no more than the next."""
    sizes = list(SIZES_BYTES[:-1])
    while sizes and 2 * sum(sizes) > most_bytes:
        sizes.pop()
    return sizes


async def measured_factor(
    experiment: Experiment,
    client: TrainerClient,
    name: str,
    first: int,
    profiled: WorkerProfile,
    most_seconds: float | None = None,
) -> tuple[float, int]:
    """Measure a step of the blocks from `first` on at a trainer, on random features in a session of its own, of which nothing
    stays.

    profiled: the profile's trainer. most_seconds: for the opening, as others are measured after it. Returns the ratio of the
    time to that one's, and the bytes. Raises IsthmusError.
    """
    placement, blocks = experiment.placement, len(experiment.chain.blocks)
    request = opening_request(experiment, name, placement)
    try:
        async with asyncio.timeout(most_seconds):
            opened = await client.open_session(request)
    except TimeoutError as late:
        raise UnreachableError(f"trainer {name!r} has not opened a session within {most_seconds:g} s") from late
    try:
        steps = await client.measure_stage(opened.session_id, first, blocks, MEASURED_STEPS)
    finally:
        await abandon_at(client, opened.session_id)
    ratio = statistics.median(totals(steps)) / float(profiled.seconds_at(placement.staleness)[first, blocks])
    return ratio, request.ByteSize() + opened.ByteSize()
