"""Replicas of a checkpoint: another worker keeps a copy of each trainer's part on its disk."""

from collections.abc import Sequence

from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Transfer, WorkerCalls
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, RefusedError
from shared.placement import AGENT, Placement, replica_keepers
from shared.training.held_state import changing_blocks


async def replicate(session: OpenSession, device: WorkerCalls, name: CheckpointName, placement: Placement) -> bool:
    """Have another worker keep a copy of each trainer's part of a checkpoint. Returns whether there was any part.

    If a keeper without blocks is away, another one keeps them; if one takes no samples, this device keeps what could tell
    these. Raises IsthmusError.
    """
    members, experiment = session.members, session.experiment
    workers: dict[str, WorkerCalls] = {**members, device.name: device}
    left = set(changing_blocks(experiment.chain))

    async def bring(trainer: str, keeper: str, blocks: list[int]) -> None:
        try:
            await bring_replicas(workers[trainer], workers[keeper], name, blocks)
        except IsthmusError as failure:
            if members.may_miss(keeper, placement):
                members.miss(keeper, str(failure))
            elif type(failure) is RefusedError and keeper != AGENT and any(map(experiment.is_raw, blocks)):
                members.refuse_replicas(keeper, str(failure))
            else:
                raise
        else:
            left.difference_update(blocks)

    def may_keep(block: int, worker: str) -> bool:
        return experiment.may_keep(block, worker) and not (worker in members.refusing and experiment.is_raw(block))

    while True:
        there = [worker for worker in members if worker not in members.absent]
        keepers = replica_keepers(placement, there, left, may_keep, members.keeper)
        if not keepers:
            return any(placement.owner(block) != AGENT for block in range(placement.blocks))
        await gathered(*(bring(*pair, blocks) for pair, blocks in keepers.items()))


async def bring_replicas(
    sender: WorkerCalls, receiver: WorkerCalls, name: CheckpointName, blocks: Sequence[int]
) -> None:
    """Copy blocks of a checkpoint from one worker's disk to another's.

    Raises StorageError if they cannot be read or written here, and the IsthmusError of a failed call.
    """
    for call in sender.give(receiver, Transfer(dict.fromkeys(blocks, False), name)):
        await call()
