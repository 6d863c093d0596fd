"""Replicas of a checkpoint: another worker keeps a copy of each trainer's part on its disk."""

from collections.abc import Sequence

from edge_agent.experiment.privacy import may_keep
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Transfer, WorkerCalls
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError
from shared.placement import Placement, replica_keepers
from shared.training.held_state import changing_blocks


async def replicate(session: OpenSession, device: WorkerCalls, name: CheckpointName, placement: Placement) -> bool:
    """Have another worker keep a copy of each trainer's part of a checkpoint. Returns whether there was any part.

    If a keeper without blocks is away, another one keeps them. Raises IsthmusError.
    """
    members, experiment = session.members, session.experiment
    workers: dict[str, WorkerCalls] = {**members, device.name: device}
    kept: set[str] = set()

    async def bring(trainer: str, keeper: str) -> None:
        blocks = [
            block
            for block in changing_blocks(experiment.chain)
            if placement.owner(block) == trainer
            and may_keep(block, keeper, experiment.facts, experiment.config.privacy)
        ]
        try:
            if blocks:
                await bring_replicas(workers[trainer], workers[keeper], name, blocks)
        except IsthmusError as failure:
            if not members.may_miss(keeper, placement):
                raise
            members.miss(keeper, str(failure))
        else:
            kept.add(trainer)

    while True:
        there = [worker for worker in members if worker not in members.absent]
        left = {trainer: keeper for trainer, keeper in replica_keepers(placement, there).items() if trainer not in kept}
        if not left:
            return bool(kept)
        await gathered(*(bring(*pair) for pair in left.items()))


async def bring_replicas(
    sender: WorkerCalls, receiver: WorkerCalls, name: CheckpointName, blocks: Sequence[int]
) -> None:
    """Copy blocks of a checkpoint from one worker's disk to another's.

    Raises StorageError if they cannot be read or written here, and the IsthmusError of a failed call.
    """
    for call in sender.give(receiver, Transfer(dict.fromkeys(blocks, False), name)):
        await call()
