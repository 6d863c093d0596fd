"""What follows when a session cannot go on as it is: all trainers are joined, and go on where they were, or from a checkpoint.

The checkpoint is the newest that every worker has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from edge_agent.sessions.open_session import OpenSession, Tickets
from shared.checkpoint import CheckpointName
from shared.errors import GoneError, SessionLostError, StorageError
from shared.placement import AGENT, Placement, document_of, held_blocks, parse_placement
from shared.runtime.placed_worker import PlacedWorker
from shared.training.held_state import put_back
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rejoined:
    """All workers go on where they were."""

    tickets: Tickets


@dataclass(frozen=True, slots=True)
class Restored:
    """All workers have gone back to a checkpoint."""

    tickets: Tickets
    step: int
    facts: Mapping[str, Any]
    """What this device remembered with it."""


async def rejoin(session: OpenSession, worker: PlacedWorker, *, is_whole: bool) -> Rejoined | Restored:
    """Join every trainer, and go on from memory where that is possible, or from the newest checkpoint of all.

    worker: this device's; it computes no more where a checkpoint counts. is_whole: whether training can go on from its state.
    Repeating this after a failure is safe: a trainer that has gone back to a checkpoint shows that by its lineage. Raises
    GoneError where some worker has nothing to go on from, and the IsthmusError that a call ends with.
    """
    answers = await session.join()
    if is_whole and all(_goes_on(session, answer) for answer in answers.values()):
        return Rejoined({worker: answer.tickets for worker, answer in answers.items()})
    await worker.stop()  # nothing that was begun before the loss may still change the blocks
    return await _restore_newest(session, answers)


def _goes_on(session: OpenSession, answer: pb.JoinSessionResponse) -> bool:
    """Whether a trainer has in memory what this device goes on from."""
    at = session.lineage, session.placement.version
    return answer.whole and (answer.lineage, answer.placement_version) == at


async def _restore_newest(session: OpenSession, answers: Mapping[str, pb.JoinSessionResponse]) -> Restored:
    experiment, workers, stored = session.experiment, session.workers, session.stored
    named = [{CheckpointName(name.lineage, name.step) for name in answer.checkpoints} for answer in answers.values()]
    damaged = set[CheckpointName]()
    """What a trainer could not restore."""
    while True:
        ours = await workers.disk.run(stored.checkpoints)
        common = [name for name in ours if name not in damaged and all(name in of_trainer for of_trainer in named)]
        if not common:
            raise GoneError(
                f"session {session.id} cannot go on: there is no checkpoint that this device and every trainer have"
            )
        name = common[0]
        assert stored.store is not None, "without a folder there are no checkpoints"
        try:
            checkpoint = await workers.disk.run(stored.store.load, name)
            placement = _placement_of(session, checkpoint.facts)
            await workers.compute.run(put_back, experiment.held, held_blocks(placement, AGENT), checkpoint.data)
        except StorageError as failure:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
            await workers.disk.run(stored.remove_damaged, name)
            continue
        try:
            tickets = await session.restore(name, placement)
        except SessionLostError as failure:
            _log.warning("checkpoint not restored; an older one counts", checkpoint=str(name), reason=str(failure))
            damaged.add(name)
            continue
        if session.step_log is not None:
            session.step_log.rolled_back(name.step)
        await workers.disk.run(stored.set_shared, name)
        _log.info("went back to a checkpoint", step=name.step, placement=placement.version)
        return Restored(tickets, name.step, checkpoint.facts)


def facts_of_placement(placement: Placement) -> dict[str, Any]:
    """What a checkpoint remembers of the placement in force."""
    return {"placement": document_of(placement), "placement_version": placement.version}


def _placement_of(session: OpenSession, facts: Mapping[str, Any]) -> Placement:
    """The placement that was in force at a checkpoint. Raises StorageError."""
    chain, batch_size = session.experiment.chain, session.experiment.batch_size
    try:
        placement = parse_placement(facts["placement"], "the checkpoint", len(chain.blocks), batch_size)
        return replace(placement, version=int(facts["placement_version"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise StorageError("a checkpoint does not say what was in force") from cause
