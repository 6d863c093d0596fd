"""Losses of a disturbed run that last: disks, trainers that stay dead, and ways to trainers.

Each waits for what a run must have before it can survive the loss.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.net.relay import Fault as LinkFault
from benchmarks.net.relay import Relay
from tests.chaos.faults import LOST_DISKS, Fault
from tests.chaos.processes import Side

DEATHS, DEAD_SECONDS = 2, 10.0
"""Number of deaths in a run among candidates, and the longest time that a trainer stays dead: an agent that has died too waits
for it."""
OF_THE_HOLDER = 0.7
"""Share of these deaths, and of the lost ways, that are those of the trainer with the blocks. Of the others any one is lost."""
LOST_WAYS, LOST_SECONDS, DETOUR_SECONDS = 3, 8.0, 2.0
"""Number of ways that are lost in a run, the longest time without another way, and the longest time that one is gone then."""
SILENT_SHARE = 0.5
"""Share of the ways that are lost without a word; connections of the others are reset."""


async def lose_disks(trainers: Sequence[Side], dice: random.Random, counted: Counter[Fault], log: Path) -> None:
    """Have trainers lose their disks, each time once all replicas are kept that were kept before."""
    for _ in range(dice.randint(0, LOST_DISKS)):
        await _until_shared(log, 2)  # one may have been under way when a disk was lost
        dice.choice(trainers).lose_disk()
        counted[Fault.LOST_DISK] += 1


async def let_die(trainers: Sequence[Side], dice: random.Random, counted: Counter[Fault], log: Path) -> None:
    """Have trainers die, each until others go on without it."""
    for _ in range(DEATHS):
        await _until_shared(log, 2)  # a keeper has the replicas by now, if there is one
        trainer = _one_of(trainers, dice)
        replaced = _count(log, _REPLACED)
        trainer.may_start.clear()
        trainer.kill()
        counted[Fault.DEATH] += 1
        try:
            shared = _count(log, _SHARED)
            async with asyncio.timeout(DEAD_SECONDS):
                while _count(log, _REPLACED) == replaced and _count(log, _SHARED) < shared + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        finally:
            trainer.may_start.set()


async def lose_ways(
    ways: Mapping[str, Relay], trainers: Sequence[Side], dice: random.Random, counted: Counter[Fault], log: Path
) -> None:
    """Have the device lose its ways to trainers, each until it goes through another one and a while longer.

    Until the first time it is the way to the trainer with the blocks: a run may end without any other. A way that the run
    does without is given back, and does not count until one has gone through another trainer.

    ways: by the name of the trainer; other trainers reach it without.
    """
    lost = 0
    while lost < LOST_WAYS:
        await _until_shared(log, 1)
        detours, shared = detours_of(log), _count(log, _SHARED)
        way = ways[(_one_of(trainers, dice) if detours else _holder(trainers)).name]
        if dice.random() >= SILENT_SHARE:
            way.inject(LinkFault.DROP)
        way.inject(LinkFault.FREEZE)
        counted[Fault.LOST_WAY] += 1
        try:
            async with asyncio.timeout(LOST_SECONDS):
                while detours_of(log) == detours and _count(log, _SHARED) < shared + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if detours_of(log) > detours:
                    await asyncio.sleep(dice.uniform(0.0, DETOUR_SECONDS))
        except TimeoutError:
            pass
        finally:
            way.inject(LinkFault.RESUME)
        lost += detours_of(log) > 0


def detours_of(log: Path) -> int:
    """Count the times that an agent went through another trainer."""
    return _count(log, "going through another one")


def _one_of(trainers: Sequence[Side], dice: random.Random) -> Side:
    any_one = dice.choice(trainers)
    return _holder(trainers) if dice.random() < OF_THE_HOLDER else any_one


def _holder(trainers: Sequence[Side]) -> Side:
    """Return the trainer with the blocks: the one that was the last to do a step."""
    return max(trainers, key=Side.stepped_at)


_SHARED, _REPLACED = "checkpoint at every worker", "trainers replaced"


async def _until_shared(log: Path, more: int) -> None:
    """Wait until so many more checkpoints are shared."""
    shared = _count(log, _SHARED)
    while _count(log, _SHARED) < shared + more:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _count(log: Path, words: str) -> int:
    return log.read_text().count(words)
