"""What follows when a session cannot go on as it is: all trainers are joined, and go on where they were, or from a checkpoint.

The checkpoint is the newest of which the workers have all blocks between them, on the disks of those that go on. Its placement
has to be permitted by the configuration of today.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, starmap
from typing import Any

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.replacing import planned_around
from edge_agent.sessions.joining import Joined, clear_others, join, open_again, record_trainer_sessions, restore
from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.member import Tickets
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.replicas import bring_replicas
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import (
    ConfigError,
    DataError,
    GoneError,
    IsthmusError,
    NotStoredError,
    StorageError,
    UnreachableError,
)
from shared.placement import (
    AGENT,
    Link,
    OnDisk,
    Placement,
    PlacementPlan,
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


async def rejoin(
    session: OpenSession, worker: PlacedWorker, *, is_whole: bool, wanted: Collection[str] = ()
) -> Rejoined | Restored:
    """Join every trainer, and go on from memory where that is possible, or from the newest checkpoint of all.

    worker: this device's; it computes no more where a checkpoint counts. is_whole: whether training can go on from its state.
    wanted: see `join`. Repeating this after a failure is safe: a trainer that has gone back to a checkpoint shows that by its
    lineage. Raises GoneError where some worker has nothing to go on from, ConfigError or DataError where the configuration no
    longer permits the placement of the checkpoint, and the IsthmusError that a call ends with.
    """
    session.goes_back = session.goes_back or not is_whole
    before = await session.workers.disk.run(_placement_to_restore, session) if session.goes_back else session.placement
    session.needed = [name for name in session.members if held_blocks(before, name) or name in session.also_needed]
    joined = await join(session, session.needed, wanted)
    if not session.goes_back and all(
        name in joined.answers and _goes_on(session, joined.answers[name]) for name in session.needed
    ):
        await clear_others(session, joined.answers, wanted)
        await record_trainer_sessions(session)
        return Rejoined({name: answer.tickets for name, answer in joined.answers.items()})
    session.goes_back = True
    await worker.stop()  # nothing that was begun before the loss may still change the blocks
    restored = await _restore_newest(session, joined)
    session.goes_back, session.also_needed = False, set()
    session.needed = session.holders(session.placement)
    return restored


def placement_to_go_on_with(stored: StoredSession, experiment: Experiment) -> Placement:
    """The placement of the newest checkpoint on this device; that of the experiment where there is none. Blocks."""
    for name in stored.checkpoints():
        assert stored.store is not None, "without a folder there are no checkpoints"
        with suppress(StorageError):
            return _placement_of(experiment, stored.store.load(name).facts)
    return experiment.placement


def _placement_to_restore(session: OpenSession) -> Placement:
    return placement_to_go_on_with(session.stored, session.experiment)


def _goes_on(session: OpenSession, answer: pb.JoinSessionResponse) -> bool:
    """Whether a trainer has in memory what this device goes on from."""
    at = session.lineage, session.placement.version
    return answer.whole and (answer.lineage, answer.placement_version) == at


async def _restore_newest(session: OpenSession, joined: Joined) -> Restored:
    disk, stored = session.workers.disk, session.stored
    changing = changing_blocks(session.experiment.chain)
    nowhere: list[int] = []
    """The blocks of the newest checkpoint that nobody has."""
    for name in await disk.run(stored.checkpoints):
        assert stored.store is not None, "without a folder there are no checkpoints"
        try:
            facts = (await disk.run(stored.store.load, name)).facts
            before = _placement_of(session.experiment, facts)
        except StorageError as failure:
            await _drop_damaged(session, name, failure)
            continue
        on_disk = _on_disk(joined, name, (await disk.run(stored.store.replicas)).get(name, []))
        placement = await _around(session, before, on_disk)
        missing = fetches(before, placement, on_disk, changing)
        if missing.nowhere:
            nowhere = nowhere or missing.nowhere
            continue
        _check_permitted(session, placement)
        await _take_in_lost(session, joined, placement)
        try:
            await gathered(*(bring_replicas(session, name, *pair, blocks) for pair, blocks in missing.between.items()))
            if not await _put_back_here(session, name, placement):
                continue
            tickets = await restore(session, joined.answers, name, placement)
        except NotStoredError as failure:
            _log.warning("checkpoint not restored; an older one counts", checkpoint=str(name), reason=str(failure))
            continue
        if session.step_log is not None:
            session.step_log.rolled_back(name.step)
        await disk.run(stored.set_shared, name)
        await record_trainer_sessions(session)
        _log.info("went back to a checkpoint", step=name.step, placement=placement.version)
        return Restored(tickets, name.step, facts, placement != before)
    raise _gone(session, nowhere, joined)


async def _take_in_lost(session: OpenSession, joined: Joined, placement: Placement) -> None:
    """Open the session again at the trainers that have lost it and are to have blocks, which others keep for them.

    Raises UnreachableError where one that is to have blocks is not joined.
    """
    for name in session.holders(placement):
        if name in joined.lost:
            joined.answers[name] = await open_again(session, name)
        elif name not in joined.answers:
            session.also_needed.add(name)
            raise UnreachableError(f"trainer {name!r}, which has blocks of the checkpoint, is not there yet")


def _on_disk(joined: Joined, name: CheckpointName, here: list[int]) -> dict[str, OnDisk]:
    """What each worker that is there has of a checkpoint. here: the replicas on this device, whose own part is there."""
    found = {AGENT: OnDisk(part=True, replicas=frozenset(here))}
    found |= {worker: OnDisk(part=False) for worker in joined.lost}
    for worker, answer in joined.answers.items():
        parts = [CheckpointName(part.lineage, part.step) for part in answer.checkpoints]
        replicas = {
            CheckpointName(kept.checkpoint.lineage, kept.checkpoint.step): kept.blocks for kept in answer.replicas
        }
        found[worker] = OnDisk(part=name in parts, replicas=frozenset(replicas.get(name, ())))
    return found


async def _around(session: OpenSession, before: Placement, on_disk: Mapping[str, OnDisk]) -> Placement:
    """The placement of a checkpoint without the trainers that are left out. Raises GoneError where there can be none."""
    kept = {worker: on.replicas for worker, on in on_disk.items()}
    left_out, experiment = sorted(session.left_out), session.experiment
    missing: dict[Link, IsthmusError] = {}
    if any(held_blocks(before, worker) for worker in left_out):
        ranked = [worker for worker in before.workers if worker in kept and worker in session.members]
        missing = await missing_links(session, starmap(Link, permutations(ranked, 2)))

    def barred(placement: Placement) -> str:
        plan = PlacementPlan.of(placement, experiment.facts) if missing else None
        wanted = [] if plan is None else sorted(links_between(plan) & missing.keys())
        return str(missing[wanted[0]]) if wanted else ""

    try:
        return await session.workers.compute.run(planned_around, experiment, before, left_out, kept, barred)
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


def _gone(session: OpenSession, nowhere: list[int], joined: Joined) -> GoneError:
    """nowhere: blocks of the newest checkpoint that nobody has any more."""
    if joined.lost:
        kept = (
            f"; of the newest checkpoint, blocks {', '.join(map(str, ranges_of(nowhere)))} are nowhere else"
            if nowhere
            else ""
        )
        return GoneError(f"{next(iter(joined.lost.values()))}{kept}")
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


def _placement_of(experiment: Experiment, facts: Mapping[str, Any]) -> Placement:
    """The placement that was in force at a checkpoint. Raises StorageError."""
    chain, batch_size = experiment.chain, experiment.batch_size
    try:
        placement = parse_placement(facts["placement"], "the checkpoint", len(chain.blocks), batch_size)
        return replace(placement, version=int(facts["placement_version"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise StorageError("a checkpoint does not say what was in force") from cause
