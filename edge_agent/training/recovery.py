"""Recovery of a session that cannot continue: all trainers are joined, and continue from memory, or from a checkpoint.

The checkpoint is the newest of which the continuing workers have all blocks on their disks together. The present
configuration must permit its placement.
"""

from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import permutations, starmap
from typing import Any

import structlog

from edge_agent.coordinator import Action, TrainersAnswered, TrainersJoined
from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.replacing import plan_without
from edge_agent.sessions.admission import take_in
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.joining import JoinAnswers, clear_others, join, restore
from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.replicas import bring_replicas_by_any_way
from edge_agent.sessions.stand_ins import successors
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.sessions.worker_calls import Tickets, WorkerCalls, WorkerPosition
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
from shared.training.held_state import changing_blocks

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rejoined:
    """The result that all workers continue from memory."""

    tickets: Tickets


@dataclass(frozen=True, slots=True)
class Restored:
    """The result that all workers have gone back to a checkpoint."""

    tickets: Tickets
    step: int
    facts: Mapping[str, Any]
    """Data that this device stored with it."""
    is_replanned: bool
    """True if it is restored under another placement than before, without the trainers that are left out."""


class Recovery:
    """The recovery of one session. Used on the event loop."""

    def __init__(self, session: OpenSession, device: DeviceWorker) -> None:
        self._session = session
        self._device = device
        self._also_needed: set[str] = set()
        """Trainers without blocks that are needed to restore the chosen checkpoint."""

    async def join_or_go_back(self) -> Rejoined | Restored:
        """Join every trainer, and continue from memory or from the newest checkpoint of all, as the coordinator says.

        The call can be repeated after a failure: a trainer that has gone back to a checkpoint shows that by its lineage.
        Raises GoneError if some worker has no state to continue from, ConfigError or DataError if the configuration no longer
        permits the placement of the checkpoint, and the IsthmusError of a failed call.
        """
        session, members = self._session, self._session.members
        coordinator, before = session.coordinator, session.placement
        if coordinator.state.goes_back:
            before = await session.threads.disk.run(placement_to_go_on_with, session.stored, session.experiment)
        members.need(name for name in members if held_blocks(before, name) or name in self._also_needed)
        joined = await join(session)
        positions = joined.positions
        behind = [name for name in members.needed if members[name].is_blank or not self._goes_on(positions.get(name))]
        answered = TrainersAnswered(some_lost=bool(behind), may_begin_again=all(map(self.may_begin_again, behind)))
        if coordinator.tell(answered) is not Action.GO_BACK:
            for name in behind:
                await self._begin_again(joined, name)
            await clear_others(session, positions)
            coordinator.tell(TrainersJoined())
            return Rejoined({name: position.tickets for name, position in positions.items()})
        restored = await self._restore_newest(joined)
        self._also_needed = set()
        coordinator.tell(TrainersJoined())
        return restored

    def _goes_on(self, at: WorkerPosition | None) -> bool:
        """Tell whether a trainer has in memory the state from which this device continues."""
        state = self._session.state
        in_force = True, state.lineage, state.placement.version
        return at is not None and (at.is_whole, at.lineage, at.placement_version) == in_force

    def may_begin_again(self, name: str) -> bool:
        """Tell whether a trainer that has lost all may begin again in mid-step, unless all go back.

        In a recorded run it may only without staleness: with it, the order in which it has computed decides the bits.
        """
        plan, config = self._session.state.plan.training, self._session.experiment.config
        is_repeatable = plan.placement.staleness == 0 or not config.output.record
        return name in plan.stateless and is_repeatable and self._device.may_be_repeated

    async def _begin_again(self, joined: JoinAnswers, name: str) -> None:
        trainer, step = self._session.members[name], self._device.repeated_step
        position = joined.positions.get(name) or await trainer.open()
        joined.positions[name] = position._replace(tickets=await trainer.begin_again(step))
        self._device.repeat(name)
        _log.info("a worker without a state begins again; nobody goes back", worker=name, step=step)

    async def _restore_newest(self, joined: JoinAnswers) -> Restored:
        session, device = self._session, self._device
        disk, stored = session.threads.disk, session.stored
        if session.members.left_out and not (joined.positions or joined.lost):
            await self._take_in_another(joined)
        workers: dict[str, WorkerCalls] = {**session.members, device.name: device}
        here = await device.join()
        nowhere: list[int] = []
        """Blocks of the newest checkpoint that no worker has."""
        for name in sorted(here.parts, reverse=True):
            assert stored.store is not None, "without a folder there are no checkpoints"
            try:
                facts = (await disk.run(stored.store.load, name)).facts
                before = _placement_of(session.experiment, facts)
            except StorageError as failure:
                await disk.run(stored.drop_damaged, name, failure)
                continue
            positions = {device.name: here, **dict.fromkeys(joined.lost, WorkerPosition()), **joined.positions}
            on_disk = {worker: position.on_disk(name) for worker, position in positions.items()}
            placement = await self._around(before, on_disk)
            lacking, missing = fetches(before, placement, on_disk, changing_blocks(session.experiment.chain))
            if missing:
                nowhere = nowhere or missing
                continue
            self._check_permitted(placement)
            await self._take_in_lost(joined, placement)
            plan = await session.state.plan_of(placement)
            try:
                await gathered(
                    *(
                        bring_replicas_by_any_way(workers[sender], workers[receiver], device, name, blocks)
                        for (sender, receiver), blocks in lacking.items()
                    )
                )
                tickets = await restore(session, joined.positions, name, plan)
                await device.restore(name, plan)  # last, because its step log then says that the run went back
            except NotStoredError as failure:
                _log.warning("checkpoint not restored; an older one counts", checkpoint=str(name), reason=str(failure))
                continue
            await disk.run(stored.set_shared, name)
            _log.info("went back to a checkpoint", step=name.step, placement=placement.version)
            return Restored(tickets, name.step, facts, placement != before)
        raise self._gone(nowhere, joined)

    async def _take_in_another(self, joined: JoinAnswers) -> None:
        """Take a candidate in where no trainer is left: it may read the parts of the others, or have them from this device.

        One that was left out, and is back, is as good. Raises UnreachableError if nobody would take over, unless this
        device may go on alone, or there are no candidates.
        """
        session, members = self._session, self._session.members
        back = [name for name in members.left_out if name not in members.stalled]
        async with aclosing(successors(session, [*members.candidates, *back])) as would:
            async for name in would:
                try:
                    joined.positions[name] = await take_in(session, name)
                except IsthmusError as failure:
                    _log.warning("a candidate does not take over", trainer=name, reason=str(failure))
                else:
                    return
        if members.candidates and not session.experiment.config.engine.allow_edge_only:
            raise UnreachableError(f"no candidate answers that would take over from {_named(members.left_out)}")

    async def _take_in_lost(self, joined: JoinAnswers, placement: Placement) -> None:
        """Open the session again at trainers that have lost it and will have blocks, which others keep for them.

        Raises UnreachableError if one that will have blocks is not joined.
        """
        for trainer in self._session.members.holders(placement):
            if trainer.name in joined.lost:
                joined.positions[trainer.name] = await trainer.open()
            elif trainer.name not in joined.positions:
                self._also_needed.add(trainer.name)
                raise UnreachableError(
                    f"trainer {trainer.name!r}, which has blocks of the checkpoint, is not there yet"
                )

    async def _around(self, before: Placement, on_disk: Mapping[str, OnDisk]) -> Placement:
        """Return the placement of a checkpoint without the trainers that are left out. Raises GoneError if there can be
        none."""
        session, experiment = self._session, self._session.experiment
        kept, left_out = {worker: on.replicas for worker, on in on_disk.items()}, sorted(session.members.left_out)
        missing: dict[Link, IsthmusError] = {}
        if any(held_blocks(before, worker) for worker in left_out):
            trainers = [worker for worker in kept if worker in session.members]
            missing = await missing_links(session, starmap(Link, permutations(trainers, 2)))

        def barred(placement: Placement) -> str:
            plan = PlacementPlan.of(placement, experiment.facts) if missing else None
            wanted = [] if plan is None else sorted(links_between(plan) & missing.keys())
            return str(missing[wanted[0]]) if wanted else ""

        try:
            return await session.threads.compute.run(plan_without, experiment, before, left_out, kept, barred)
        except (ConfigError, DataError) as impossible:
            raise GoneError(
                f"session {session.id} cannot go on without {_named(left_out)}: {impossible}"
            ) from impossible

    def _check_permitted(self, placement: Placement) -> None:
        """Refuse to continue under a placement that is no longer permitted. Raises ConfigError or DataError."""
        try:
            self._session.experiment.check(placement)
        except (ConfigError, DataError) as refusal:
            raise type(refusal)(
                f"session {self._session.id} cannot go on under the placement of its checkpoint: {refusal}; otherwise begin a "
                "new run without --resume"
            ) from refusal

    def _gone(self, nowhere: list[int], joined: JoinAnswers) -> GoneError:
        """Build the error of lost blocks. nowhere: blocks of the newest checkpoint that no worker has any more."""
        blocks = ", ".join(map(str, ranges_of(nowhere)))
        if joined.lost:
            kept = f"; of the newest checkpoint, blocks {blocks} are nowhere else" if nowhere else ""
            return GoneError(f"{next(iter(joined.lost.values()))}{kept}")
        left_out = self._session.members.left_out
        without = f" without {_named(left_out)}" if left_out else ""
        lacking = f"; of the newest one, blocks {blocks} are nowhere" if nowhere else ""
        return GoneError(
            f"session {self._session.id} cannot go on{without}: there is no checkpoint that this device and every trainer "
            f"have{lacking}"
        )


def placement_to_go_on_with(stored: StoredSession, experiment: Experiment) -> Placement:
    """Return the placement of the newest checkpoint on this device; that of the experiment if there is none. Blocks."""
    for name in stored.checkpoints():
        assert stored.store is not None, "without a folder there are no checkpoints"
        with suppress(StorageError):
            return _placement_of(experiment, stored.store.load(name).facts)
    return experiment.placement


def _named(workers: Collection[str]) -> str:
    return ", ".join(repr(worker) for worker in sorted(workers))


def facts_of_placement(placement: Placement) -> dict[str, Any]:
    """Return the data that a checkpoint stores of the placement in force."""
    return {"placement": document_of(placement), "placement_version": placement.version}


def _placement_of(experiment: Experiment, facts: Mapping[str, Any]) -> Placement:
    """Read the placement that was in force at a checkpoint. Raises StorageError."""
    chain, batch_size = experiment.chain, experiment.batch_size
    try:
        placement = parse_placement(facts["placement"], "the checkpoint", len(chain.blocks), batch_size)
        return replace(placement, version=int(facts["placement_version"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise StorageError("a checkpoint does not say what was in force") from cause
