"""What follows when a session cannot go on as it is: all trainers are joined, and go on where they were, or from a checkpoint.

The checkpoint is the newest of which the workers have all blocks between them, on the disks of those that go on. Its placement
has to be permitted by the configuration of today.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from edge_agent.experiment.replacing import planned_around
from edge_agent.sessions.open_session import OpenSession, Tickets
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import ConfigError, DataError, GoneError, SessionLostError, StorageError
from shared.placement import (
    AGENT,
    OnDisk,
    Placement,
    document_of,
    fetches,
    held_blocks,
    parse_placement,
    ranges_of,
)
from shared.runtime.checkpoint_states import load_states
from shared.runtime.placed_worker import PlacedWorker
from shared.training.held_state import changing_blocks, put_back
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
    planned_around: bool
    """Whether it is restored under another placement than that of then, without the trainers that are left out."""


async def rejoin(session: OpenSession, worker: PlacedWorker, *, is_whole: bool) -> Rejoined | Restored:
    """Join every trainer, and go on from memory where that is possible, or from the newest checkpoint of all.

    worker: this device's; it computes no more where a checkpoint counts. is_whole: whether training can go on from its state.
    Repeating this after a failure is safe: a trainer that has gone back to a checkpoint shows that by its lineage. Raises
    GoneError where some worker has nothing to go on from, ConfigError or DataError where the configuration no longer permits
    the placement of the checkpoint, and the IsthmusError that a call ends with.
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
    disk, stored = session.workers.disk, session.stored
    changing = changing_blocks(session.experiment.chain)
    nowhere: list[int] = []
    """The blocks of the newest checkpoint that nobody has."""
    for name in await disk.run(stored.checkpoints):
        assert stored.store is not None, "without a folder there are no checkpoints"
        try:
            facts = (await disk.run(stored.store.load, name)).facts
            before = _placement_of(session, facts)
        except StorageError as failure:
            await _drop_damaged(session, name, failure)
            continue
        on_disk = _on_disk(answers, name, (await disk.run(stored.store.replicas)).get(name, []))
        placement = _around(session, before, on_disk)
        missing = fetches(before, placement, on_disk, changing)
        if missing.nowhere:
            nowhere = nowhere or missing.nowhere
            continue
        _check_permitted(session, placement)
        try:
            await gathered(*(session.bring_replicas(name, *pair, blocks) for pair, blocks in missing.between.items()))
            if not await _put_back_here(session, name, placement):
                continue
            tickets = await session.restore(name, placement)
        except SessionLostError as failure:
            _log.warning("checkpoint not restored; an older one counts", checkpoint=str(name), reason=str(failure))
            continue
        if session.step_log is not None:
            session.step_log.rolled_back(name.step)
        await disk.run(stored.set_shared, name)
        _log.info("went back to a checkpoint", step=name.step, placement=placement.version)
        return Restored(tickets, name.step, facts, placement != before)
    raise _gone(session, nowhere)


def _on_disk(answers: Mapping[str, pb.JoinSessionResponse], name: CheckpointName, here: list[int]) -> dict[str, OnDisk]:
    """What each worker has of a checkpoint. here: the replicas on this device, whose own part is there."""
    found = {AGENT: OnDisk(part=True, replicas=frozenset(here))}
    for worker, answer in answers.items():
        parts = [CheckpointName(part.lineage, part.step) for part in answer.checkpoints]
        replicas = {
            CheckpointName(kept.checkpoint.lineage, kept.checkpoint.step): kept.blocks for kept in answer.replicas
        }
        found[worker] = OnDisk(part=name in parts, replicas=frozenset(replicas.get(name, ())))
    return found


def _around(session: OpenSession, before: Placement, on_disk: Mapping[str, OnDisk]) -> Placement:
    """The placement of a checkpoint without the trainers that are left out. Raises GoneError where there can be none."""
    kept = {worker: on.replicas for worker, on in on_disk.items()}
    try:
        return planned_around(session.experiment, before, sorted(session.left_out), kept)
    except (ConfigError, DataError) as impossible:
        raise GoneError(
            f"session {session.id} cannot go on without {_named(session.left_out)}: {impossible}"
        ) from impossible


def _check_permitted(session: OpenSession, placement: Placement) -> None:
    """Refuse to go on under a placement that was permitted once. Raises ConfigError or DataError."""
    try:
        session.experiment.check(placement)
    except (ConfigError, DataError) as refusal:
        raise type(refusal)(
            f"session {session.id} cannot go on under the placement of its checkpoint: {refusal}; otherwise begin a new run "
            "without --resume"
        ) from refusal


async def _put_back_here(session: OpenSession, name: CheckpointName, placement: Placement) -> bool:
    """Have this device's blocks as they were then; whether they are whole on its disk."""
    workers, held, store = session.workers, session.experiment.held, session.stored.store
    assert store is not None, "without a folder there are no checkpoints"
    blocks = held_blocks(placement, AGENT)
    needed = set(blocks).intersection(changing_blocks(session.experiment.chain))
    try:
        states = await workers.disk.run(load_states, store, name, needed)
        await workers.compute.run(put_back, held, blocks, states)
    except StorageError as failure:
        await _drop_damaged(session, name, failure)
        return False
    return True


async def _drop_damaged(session: OpenSession, name: CheckpointName, failure: StorageError) -> None:
    _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
    await session.workers.disk.run(session.stored.remove_damaged, name)


def _gone(session: OpenSession, nowhere: list[int]) -> GoneError:
    """nowhere: blocks of the newest checkpoint that nobody has any more."""
    without = f" without {_named(session.left_out)}" if session.left_out else ""
    blocks = f"; of the newest one, blocks {', '.join(map(str, ranges_of(nowhere)))} are nowhere" if nowhere else ""
    return GoneError(
        f"session {session.id} cannot go on{without}: there is no checkpoint that this device and every trainer have{blocks}"
    )


def _named(workers: Collection[str]) -> str:
    return ", ".join(repr(worker) for worker in sorted(workers))


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
