"""Putting another placement into force: drained, blocks moved, committed; until the commit every worker can go back.

The commit point is this device: once it has taken in what it needs, it commits at every trainer. A fault before leaves the old
placement, one after it the new one, or a checkpoint.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from edge_agent.sessions.links_between import check_links
from edge_agent.sessions.member import Tickets
from edge_agent.sessions.open_session import OpenSession
from shared.client.retry import Retry
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, RefusedError, SessionLostError, UnreachableError
from shared.placement import AGENT, BlockMove, Placement, PlacementPlan, held_blocks, moves
from shared.training import block_state

_log = structlog.get_logger(__name__)
AT_ONCE = 4
"""Blocks that come here or go from here together, and pairs of trainers between which blocks go: enough that the link never
waits for an answer; more would only take memory."""
NEWCOMER_SECONDS = 5.0
"""How long a trainer that has no blocks yet may be away while it is given some: nobody has to have it, so training goes on."""
T = TypeVar("T")


def newcomers(before: Placement, after: Placement) -> list[str]:
    """The trainers that have no blocks and are to have some."""
    return [
        name for name in after.workers if name != AGENT and held_blocks(after, name) and not held_blocks(before, name)
    ]


async def change_placement(
    session: OpenSession, placement: Placement, next_step: int, give_up_seconds: float | None = None
) -> tuple[Tickets, float]:
    """Put `placement` into force between two steps, with nothing in flight and no link up.

    Waits for trainers that are away and have blocks. Returns the new tickets, and the seconds that it took. Raises RefusedError
    where a trainer without blocks is away, or one cannot dial another one; TimeoutError when blocks are still under way after
    `give_up_seconds`; IsthmusError when it could not be done. Then the old placement is in force here, and joining the trainers
    tells what they have.
    """
    started = time.monotonic()
    held, compute = session.experiment.held, session.workers.compute
    wanted, plan = held_blocks(placement, AGENT), await session.plan_of(placement)
    async with asyncio.timeout(give_up_seconds):
        await _check_links(session, plan)
        arriving = await _move_blocks(session, session.placement, placement)
        await gathered(
            *(
                _at(session, name, placement, partial(session.prepare, name, placement, next_step))
                for name in session.holders(placement)
            )
        )
    await compute.run(held.take_in, wanted, arriving)
    try:
        tickets = await session.retry.run(partial(session.commit, placement, next_step))
    except BaseException:
        await compute.run(held.let_go)
        raise
    await compute.run(held.hold, wanted, arriving)
    session.plan, session.needed = plan, session.holders(placement)
    seconds = time.monotonic() - started
    _log.info("placement changed", step=next_step, version=placement.version, seconds=round(seconds, 3))
    return tickets, seconds


async def _move_blocks(
    session: OpenSession, before: Placement, after: Placement
) -> Mapping[int, block_state.BlockTensors]:
    """Bring every trainer the blocks that it lacks. Returns the states of those that come here."""
    blocks, slots = session.experiment.chain.blocks, asyncio.Semaphore(AT_ONCE)
    arriving: dict[int, block_state.BlockTensors] = {}
    between: dict[tuple[str, str], dict[int, bool]] = defaultdict(dict)
    """By sender and receiver, the blocks that go straight from trainer to trainer, and whether their weights alone do."""

    async def in_turn(call: Callable[[], Awaitable[T]], receiver: str = AGENT) -> T:
        async with slots:
            return await _at(session, receiver, after, call)

    async def come(one: BlockMove) -> None:
        download = partial(session.download_block, one.sender, blocks[one.block], weights_only=not one.whole)
        arriving[one.block] = await in_turn(download)

    async def go(one: BlockMove) -> None:
        async def upload() -> None:
            await session.upload_block(one.receiver, blocks[one.block], _state_of(session, one), before.version)

        await in_turn(upload, one.receiver)

    moving: list[Coroutine[Any, Any, None]] = []
    for one in moves(before, after):
        if not _must_move(session, one):
            continue
        if AGENT not in (one.sender, one.receiver):
            between[one.sender, one.receiver][one.block] = not one.whole
        else:
            moving.append(come(one) if one.receiver == AGENT else go(one))
    moving += [in_turn(partial(session.send_blocks, *pair, weights), pair[1]) for pair, weights in between.items()]
    await gathered(*moving)
    return arriving


async def _check_links(session: OpenSession, after: PlacementPlan) -> None:
    """Ask whether all links can be dialled that there are not yet, before anything is done for them. Raises RefusedError."""
    try:
        await Retry(NEWCOMER_SECONDS).run(partial(check_links, session, after, session.plan))
    except (UnreachableError, BusyError, SessionLostError) as failure:
        raise RefusedError(str(failure)) from failure


async def _at(session: OpenSession, worker: str, after: Placement, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that brings a worker something, as often as it takes; a newcomer is not waited for.

    Raises RefusedError where that fails.
    """
    if worker not in newcomers(session.placement, after):
        return await session.retry.run(call)
    try:
        return await Retry(NEWCOMER_SECONDS).run(call)
    except (UnreachableError, BusyError, SessionLostError) as failure:
        session.miss(worker, str(failure))
        raise RefusedError(f"trainer {worker!r}, which was to have blocks, is away: {failure}") from failure


def _must_move(session: OpenSession, one: BlockMove) -> bool:
    """Whether a block has to travel: a static one, which training leaves as it is, may be there from the beginning."""
    block = session.experiment.chain.blocks[one.block]
    return not block_state.is_static(block) if one.receiver == AGENT else session.must_move(one.receiver, block)


def _state_of(session: OpenSession, one: BlockMove) -> block_state.BlockTensors:
    """What goes from here."""
    block = session.experiment.chain.blocks[one.block]
    if block_state.is_static(block):
        return block_state.collect(block, None)
    tensors = session.experiment.held.block_tensors(one.block)
    return tensors if one.whole else block_state.without_optimizer(tensors)
