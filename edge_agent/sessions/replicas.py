"""Replicas of a checkpoint: another worker keeps a copy of each trainer's part on its disk."""

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from edge_agent.sessions.membership import MemberStatus
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Transfer, WorkerCalls
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import (
    BusyError,
    FencedError,
    IsthmusError,
    RefusedError,
    SessionLostError,
    StorageError,
    UnreachableError,
)
from shared.placement import AGENT, Placement, replica_keepers
from shared.training.held_state import changing_blocks

_log = structlog.get_logger(__name__)


class Replicated(NamedTuple):
    """The outcome of replicating one checkpoint."""

    is_whole: bool
    """True if trainers have parts, and another worker keeps a copy of each."""
    lacking: str = ""
    """A sentence that says why blocks have no replica; empty if nothing prevented one."""


async def replicate(
    session: OpenSession, device: WorkerCalls, name: CheckpointName, placement: Placement
) -> Replicated:
    """Have another worker keep a copy of each trainer's part of a checkpoint.

    If a keeper without blocks is away, another one keeps them; if one takes no samples, this device keeps what could tell
    these, and also what a keeper cannot get. What this device has no room for, or is refused, has no replica. Raises
    the IsthmusError of a trainer that cannot give its part, and FencedError or SessionLostError where the session is over.
    """
    members, experiment = session.members, session.experiment
    workers: dict[str, WorkerCalls] = {**members, device.name: device}
    left, lacking = set(changing_blocks(experiment.chain)), ""

    async def bring(trainer: str, keeper: str, blocks: list[int]) -> None:
        try:
            await bring_replicas(workers[trainer], workers[keeper], name, blocks)
        except IsthmusError as failure:
            if keeper == AGENT:
                keep_none(blocks, failure)
            elif members.may_miss(keeper) and type(failure) not in (RefusedError, BusyError):
                members.miss(keeper, str(failure))
            elif isinstance(failure, FencedError | SessionLostError):
                raise
            elif type(failure) is RefusedError and any(map(experiment.is_raw, blocks)):
                members.refuse_replicas(keeper, str(failure))
            else:
                _log.warning(
                    "this device keeps replicas that another worker cannot", worker=keeper, reason=str(failure)
                )
                await bring(trainer, AGENT, blocks)
        else:
            left.difference_update(blocks)

    def keep_none(blocks: list[int], failure: IsthmusError) -> None:
        nonlocal lacking
        if type(failure) not in (StorageError, RefusedError):
            raise failure
        lacking = str(failure)
        left.difference_update(blocks)

    def may_keep(block: int, worker: str) -> bool:
        return experiment.may_keep(block, worker) and not (worker in members.refusing and experiment.is_raw(block))

    while True:
        there = [worker for worker in members if members.status(worker) is not MemberStatus.ABSENT]
        keepers = replica_keepers(placement, there, left, may_keep, members.keeper)
        if not keepers:
            has_parts = any(placement.owner(block) != AGENT for block in range(placement.blocks))
            return Replicated(has_parts and not lacking, lacking)
        await gathered(*(bring(*pair, blocks) for pair, blocks in keepers.items()))


async def bring_replicas(
    sender: WorkerCalls, receiver: WorkerCalls, name: CheckpointName, blocks: Sequence[int]
) -> None:
    """Copy blocks of a checkpoint from one worker's disk to another's.

    Raises StorageError if they cannot be read or written here, and the IsthmusError of a failed call.
    """
    for call in sender.give(receiver, Transfer(dict.fromkeys(blocks, False), name)):
        await call()


async def bring_replicas_by_any_way(
    sender: WorkerCalls, receiver: WorkerCalls, device: WorkerCalls, name: CheckpointName, blocks: Sequence[int]
) -> None:
    """Copy blocks as `bring_replicas` does, and through this device where one trainer cannot dial the other. Raises alike."""
    try:
        await bring_replicas(sender, receiver, name, blocks)
    except (RefusedError, UnreachableError):
        if device.name in (sender.name, receiver.name):
            raise
        await bring_replicas(sender, device, name, blocks)
        await bring_replicas(device, receiver, name, blocks)
