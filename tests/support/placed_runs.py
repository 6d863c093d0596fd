"""Runs of an agent and its trainers over real sockets, compared with one process."""

from collections.abc import Sequence
from pathlib import Path

from edge_agent.training.result import Summary
from isthmus import run_training
from tests.support.experiments import flags
from tests.support.placement_kinds import SHARED, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config


async def trained_as_one_process(kind: str, model: str, folder: Path, more: Sequence[str]) -> Summary:
    """Train under a kind of placement with AdamW, and compare the weights with those of one process, bit for bit.

    more: flags of the run, besides its model's.
    """
    chosen = [*flags(model, "adamw"), *more]
    async with running_trainers() as servers:
        placed = [*flags_of(kind, addresses_of(servers), folder), *permitted(kind, model)]
        config = edge_config(*chosen, *placed)
        result = await run_training(config)
    expected = plain_tiles_state(config) if kind in SHARED else plain_state(edge_config(*chosen))
    assert_same_bits(expected, result.module.state_dict())
    return result.summary
