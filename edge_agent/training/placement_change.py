"""Putting another placement into force: drained, blocks moved, committed; until the commit every worker can go back.

The commit point is this device: once it has taken in what it needs, it commits at every trainer. A fault before leaves the old
placement, one after it the new one, or a checkpoint.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

import structlog

from edge_agent.sessions.open_session import OpenSession, Tickets
from shared.placement import AGENT, BlockMove, Placement, held_blocks, moves
from shared.training import block_state

_log = structlog.get_logger(__name__)
AT_ONCE = 4
"""Blocks that are under way together: enough that the link never waits for an answer; more would only take memory."""


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
    slots, arriving = asyncio.Semaphore(AT_ONCE), dict[int, block_state.BlockTensors]()

    async def move(one: BlockMove) -> None:
        block = session.experiment.chain.blocks[one.block]
        if one.receiver == AGENT and block_state.is_static(block):
            return  # its weights are ours from the beginning
        if one.receiver != AGENT and not session.must_move(one.receiver, block):
            return
        async with slots:
            tensors = await session.retry.run(partial(_state_of, session, one))
            if one.receiver == AGENT:
                arriving[one.block] = tensors
            else:
                await session.retry.run(partial(session.upload_block, one.receiver, block, tensors, before.version))

    tasks = [asyncio.create_task(move(one)) for one in moves(before, after)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return arriving


async def _state_of(session: OpenSession, one: BlockMove) -> block_state.BlockTensors:
    block = session.experiment.chain.blocks[one.block]
    if one.sender != AGENT:
        return await session.download_block(one.sender, block, weights_only=not one.whole)
    if block_state.is_static(block):
        return block_state.collect(block, None)
    tensors = session.experiment.held.block_tensors(one.block)
    return tensors if one.whole else block_state.without_optimizer(tensors)
