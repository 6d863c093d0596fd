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

from edge_agent.sessions.open_session import OpenSession, Tickets
from shared.concurrency.tasks import gathered
from shared.placement import AGENT, BlockMove, Placement, held_blocks, moves
from shared.training import block_state

_log = structlog.get_logger(__name__)
AT_ONCE = 4
"""Blocks that come here or go from here together, and pairs of trainers between which blocks go: enough that the link never
waits for an answer; more would only take memory."""
T = TypeVar("T")


async def change_placement(
    session: OpenSession, placement: Placement, next_step: int, give_up_seconds: float | None = None
) -> tuple[Tickets, float]:
    """Put `placement` into force between two steps, with nothing in flight and no link up.

    Waits for trainers that are away. Returns their new tickets, and the seconds that it took. Raises IsthmusError when it
    could not be done, and TimeoutError when blocks are still under way after `give_up_seconds`; then the old placement is in
    force here, and joining the trainers tells what they have.
    """
    started = time.monotonic()
    held, compute = session.experiment.held, session.workers.compute
    wanted = held_blocks(placement, AGENT)
    async with asyncio.timeout(give_up_seconds):
        arriving = await _move_blocks(session, session.placement, placement)
    await compute.run(held.take_in, wanted, arriving)
    try:
        tickets = await session.retry.run(partial(session.commit, placement, next_step))
    except BaseException:
        await compute.run(held.let_go)
        raise
    await compute.run(held.hold, wanted, arriving)
    session.placement = placement
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

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await session.retry.run(call)

    async def come(one: BlockMove) -> None:
        download = partial(session.download_block, one.sender, blocks[one.block], weights_only=not one.whole)
        arriving[one.block] = await in_turn(download)

    async def go(one: BlockMove) -> None:
        async def upload() -> None:
            await session.upload_block(one.receiver, blocks[one.block], _state_of(session, one), before.version)

        await in_turn(upload)

    moving: list[Coroutine[Any, Any, None]] = []
    for one in moves(before, after):
        if not _must_move(session, one):
            continue
        if AGENT not in (one.sender, one.receiver):
            between[one.sender, one.receiver][one.block] = not one.whole
        else:
            moving.append(come(one) if one.receiver == AGENT else go(one))
    moving += [in_turn(partial(session.send_blocks, *pair, weights)) for pair, weights in between.items()]
    await gathered(*moving)
    return arriving


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
