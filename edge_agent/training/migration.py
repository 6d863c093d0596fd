"""Moving the cut while training: drained, transferred, committed; until the commit both sides can go back.

The commit is the trainer's: whichever deployment it has is the one in force, and a lost answer is asked for again. So
a link that dies leaves the old deployment or the new one, never a third.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from edge_agent.sessions.open_session import OpenSession
from shared.errors import UnreachableError
from shared.model.chain import Block
from shared.training import block_state
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

_log = structlog.get_logger(__name__)

T = TypeVar("T")

AT_ONCE = 4
"""Blocks that are under way together: enough that the link never waits for an answer; more would only take memory."""


async def migrate(
    session: OpenSession, next_step: int, old: Deployment, new: Deployment, give_up_seconds: float | None = None
) -> float:
    """Move the cut from `old` to `new` between two steps, with nothing in flight; returns the seconds it took.

    Blocks whose state training does not change are sent only where the trainer has them otherwise. Raises IsthmusError when
    it could not be done, or the blocks were still under way after `give_up_seconds`; then both sides are as they were.
    """
    started = time.monotonic()
    held, compute = session.experiment.held, session.workers.compute
    try:
        async with asyncio.timeout(give_up_seconds):
            arriving = await _transfer(session, old, new)
    except TimeoutError:
        raise UnreachableError(f"the blocks were still under way after {give_up_seconds:.1f} s") from None
    await compute.run(held.take_in, range(new.cut), arriving)
    try:
        await session.commit_migration(next_step, new)
    except BaseException:
        await compute.run(held.let_go)
        raise
    await compute.run(held.hold, range(new.cut), {})
    seconds = time.monotonic() - started
    _log.info("cut moved", step=next_step, from_cut=old.cut, to_cut=new.cut, seconds=round(seconds, 3))
    return seconds


async def _transfer(session: OpenSession, old: Deployment, new: Deployment) -> dict[int, block_state.BlockTensors]:
    """Send the blocks that leave the edge. Returns the states of those that come to it, by block and by name."""
    chain, held = session.experiment.chain, session.experiment.held

    async def upload(block: Block) -> None:
        await session.upload_block(block, held.block_tensors(block.index), old.version)

    async def download(block: Block) -> block_state.BlockTensors:
        return await session.download_block(block, weights_only=False)

    leaving = [block for block in chain.blocks[new.cut : old.cut] if session.must_move(block)]
    coming = [block for block in chain.blocks[old.cut : new.cut] if not block_state.is_static(block)]
    await _overlapped(upload, leaving)
    arriving = await _overlapped(download, coming)
    return {block.index: tensors for block, tensors in zip(coming, arriving, strict=True)}


async def _overlapped(transfer: Callable[[Block], Awaitable[T]], blocks: Sequence[Block]) -> list[T]:
    """Transfer several blocks at a time. Returns what `transfer` returns for each; none is under way after a failure."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(block: Block) -> T:
        async with slots:
            return await transfer(block)

    tasks = [asyncio.create_task(one(block)) for block in blocks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
