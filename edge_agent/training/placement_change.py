"""A change of the placement: drained, blocks moved, committed. Until the commit every worker can go back.

The commit point is this device: once every worker is prepared, it has the trainers commit, and then commits itself. A
fault before that leaves the old placement. A fault after it leaves the new one, or a checkpoint.
"""

import asyncio
import time
from collections import defaultdict
from functools import partial

import structlog

from edge_agent.sessions.admission import admit
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.links_between import check_links, links_between, missing_links
from edge_agent.sessions.membership import newcomers
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Call, Change, Tickets, Transfer, WorkerCalls
from shared.client.retry import Retry
from shared.concurrency.tasks import gathered
from shared.errors import (
    BusyError,
    FencedError,
    GoneError,
    RefusedError,
    SessionLostError,
    UnreachableError,
)
from shared.placement import AGENT, Link, Placement, PlacementPlan, held_blocks, moves
from shared.training.held_state import changing_blocks

_log = structlog.get_logger(__name__)
AT_ONCE = 4
"""Number of simultaneous calls that bring blocks: enough that the link never waits for an answer. More would only take
memory."""
AWAY_SECONDS = 5.0
"""Longest absence of a worker before the change is given up: the run stands still, and may go on as it was."""


async def prepare_change(session: OpenSession, placement: Placement) -> None:
    """Do beside training what a placement needs of trainers that have no blocks yet.

    They are admitted, have the device's frozen parameters, and can dial whom they will have to dial. Those that give them
    blocks have offered these, and so wait for it if they are about to stop. Repeating it changes nothing more. Raises the
    IsthmusError of a trainer, or RefusedError if one cannot dial another one.
    """
    names = newcomers(session.placement, placement)
    await gathered(*(admit(session, name) for name in names))
    members = session.members
    await gathered(*(members[name].take_frozen(held_blocks(placement, name)) for name in names))
    fetched: dict[Link, dict[int, bool]] = defaultdict(dict)
    changing = set(changing_blocks(session.experiment.chain))
    for one in moves(session.placement, placement):
        if AGENT not in (one.sender, one.receiver) and one.block in changing:
            fetched[Link(one.receiver, one.sender)][one.block] = not one.whole
    dialled = links_between(await session.state.plan_of(placement)) | fetched.keys()
    for reason in (await missing_links(session, (link for link in dialled if set(names).intersection(link)))).values():
        raise reason
    await gathered(
        *(
            members[link.listener].offered(link.dialer, Transfer(blocks))
            for link, blocks in fetched.items()
            if link.dialer in names
        )
    )


async def change_placement(
    session: OpenSession,
    device: DeviceWorker,
    placement: Placement,
    next_step: int,
    give_up_seconds: float | None = None,
) -> tuple[Tickets, float]:
    """Put `placement` into force between two steps, with nothing in flight and no link up.

    Returns the new tickets, and the seconds of the change. Raises RefusedError if a trainer without blocks is away, or one
    cannot dial another one; TimeoutError if blocks are still under way after `give_up_seconds`; IsthmusError on other
    failures. Then the old placement is in force here, and joining the trainers tells what they have. Once the first
    trainer commits, waits for absent ones.
    """
    started = time.monotonic()
    change = Change(await session.state.plan_of(placement), next_step)
    workers: list[WorkerCalls] = [*session.members.holders(placement), device]
    try:
        async with asyncio.timeout(give_up_seconds):
            await _check_links(session, change.plan)
            await _move_blocks(session, device, placement)
            await gathered(*(_at(session, one, placement, partial(one.prepare, change)) for one in workers))
        tickets = await session.retry.run(partial(_commit, session, change))
    except BaseException:
        await device.give_up()
        raise
    await device.commit(change)
    session.put_into_force(change.plan)
    seconds = time.monotonic() - started
    _log.info("placement changed", step=next_step, version=placement.version, seconds=round(seconds, 3))
    return tickets, seconds


async def _commit(session: OpenSession, change: Change) -> Tickets:
    """Put a placement into force at every trainer that will have blocks, once all of them have agreed.

    A lost answer is requested again, which changes nothing more. Trainers that lose their blocks are told later.
    """
    holding = session.members.holders(change.plan.placement)
    found = await gathered(*(trainer.commit(change) for trainer in holding))
    return {trainer.name: tickets for trainer, tickets in zip(holding, found, strict=True)}


async def tickets_in_force(session: OpenSession, next_step: int) -> Tickets:
    """Return new tickets for the links between trainers under the placement in force. Those that dialled them are used.

    Committing what is in force changes nothing. Raises the IsthmusError of a failed call.
    """
    change = Change(session.state.plan, next_step)
    listening = sorted({link.listener for link in change.plan.training.links if AGENT not in link})
    found = await gathered(*(session.members[name].commit(change) for name in listening))
    return dict(zip(listening, found, strict=True))


async def _move_blocks(session: OpenSession, device: WorkerCalls, after: Placement) -> None:
    """Bring every worker the blocks that it lacks."""
    workers: dict[str, WorkerCalls] = {**session.members, device.name: device}
    moving: dict[tuple[str, str], dict[int, bool]] = defaultdict(dict)
    """Blocks by sender and receiver: True if the weights of the block go alone."""
    arriving: dict[str, set[int]] = defaultdict(set)
    changing = set(changing_blocks(session.experiment.chain))
    for one in moves(session.placement, after):
        arriving[one.receiver].add(one.block)
        if one.block in changing:
            moving[one.sender, one.receiver][one.block] = not one.whole
    try:
        await session.check_frozen(set().union(*arriving.values()))
    except UnreachableError as away:  # a block without a state can leave a dead trainer, and the end looks again
        _log.info("frozen parameters were not looked at", reason=str(away))
    slots = asyncio.Semaphore(AT_ONCE)

    async def in_turn(receiver: WorkerCalls, call: Call) -> None:
        async with slots:
            await _at(session, receiver, after, call)

    await gathered(
        *(in_turn(workers[name], partial(workers[name].take_frozen, blocks)) for name, blocks in arriving.items())
    )
    await gathered(
        *(
            in_turn(workers[receiver], call)
            for (sender, receiver), blocks in moving.items()
            for call in workers[sender].give(workers[receiver], Transfer(blocks))
        )
    )


async def _check_links(session: OpenSession, after: PlacementPlan) -> None:
    """Check that all missing links can be dialled, before any work for them. Raises RefusedError."""
    try:
        await Retry(AWAY_SECONDS).run(partial(check_links, session, after, session.state.plan))
    except (UnreachableError, BusyError, SessionLostError) as failure:
        raise RefusedError(str(failure)) from failure


async def _at(session: OpenSession, worker: WorkerCalls, after: Placement, call: Call) -> None:
    """Make a call that brings a worker something, again while it is away for a moment.

    Raises its IsthmusError; for a newcomer that is away, or has not the session, RefusedError: the run needs it for nothing.
    """
    try:
        await Retry(AWAY_SECONDS).run(call)
    except (UnreachableError, BusyError, SessionLostError, FencedError, GoneError) as failure:
        if worker.name not in newcomers(session.placement, after):
            raise
        session.members.miss(worker.name, str(failure))
        raise RefusedError(f"trainer {worker.name!r}, which was to have blocks, is away: {failure}") from failure
