"""Faults of the links of a disturbed run."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.net.relay import Fault as LinkFault
from benchmarks.net.relay import Relay
from tests.chaos.faults import LINK_FAULTS, Fault

DELAY_SECONDS = 0.004
"""The delay of each direction, always: it makes a run long enough to be disturbed."""
STALL_SECONDS, LEAST_CORRUPTED_BYTES = 0.6, 1500
"""Less than a feature, and more than a call that no checksum protects without TLS: a placement, above all."""


async def disturb_links(
    relays: Sequence[Relay],
    dice: random.Random,
    count: int,
    counted: Counter[Fault],
    log: Path,
    faults: Sequence[Fault] = LINK_FAULTS,
) -> None:
    """Do so many things to the links, at moments of their own. log: of the agent. counted: each fault, once it is done."""
    for _ in range(count):
        await asyncio.sleep(dice.uniform(0.05, 0.6))
        fault, relay = dice.choice(faults), dice.choice(relays)
        lane = dice.choice([relay.uplink, relay.downlink])
        match fault:
            case Fault.DROP_LINK:
                relay.inject(LinkFault.DROP)
            case Fault.HALF_OPEN:
                relay.inject(LinkFault.FREEZE)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(dice.uniform(0.1, 2 * STALL_SECONDS))
                relay.inject(LinkFault.RESUME)
            case Fault.DELAY:
                lane.one_way_delay_seconds = dice.uniform(0.01, 0.1)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.2)
                lane.one_way_delay_seconds = DELAY_SECONDS
            case Fault.CORRUPT:
                # Without TLS, what opens a session has no checksum; a session that has a checkpoint is opened no more.
                while "checkpoint at every worker" not in log.read_text():  # noqa: ASYNC110, ASYNC240
                    await asyncio.sleep(0.05)
                lane.corrupt_next(LEAST_CORRUPTED_BYTES)
        counted[fault] += 1
