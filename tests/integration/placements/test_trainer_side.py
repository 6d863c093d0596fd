"""A trainer as one worker of any placement: what it computes, what it goes on from, and what it refuses."""

import pytest

from shared.placement import AGENT, Placement, Rows, Source, Tile, two_workers
from tests.support.placed import batch_of
from tests.support.placed_agent import PlacedAgent
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS = 8, 4
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, samples) for step, samples in enumerate([8, 8, 8, 5, 8, 8])]


def middle_at(trainer, first=1, stop=3, version=0, staleness=0):
    """The first blocks and the last at the agent, so that labels stay."""
    tiles = (Tile(AGENT, 0, first, WHOLE), Tile(trainer, first, stop, WHOLE), Tile(AGENT, stop, BLOCKS, WHOLE))
    return Placement(version, BLOCKS, BATCH, (AGENT, trainer), tiles, (Source(AGENT, WHOLE),), staleness=staleness)


CUT = two_workers(AGENT, "gpu", 2, BLOCKS, BATCH)
PLACEMENTS = {"cut": CUT, "labels stay": middle_at("gpu")}


def plain_state(agent, placement, batches=BATCHES):
    """The weights of one process that runs the same tiles."""
    plain = PlainTiles(list(agent.initial), placement, agent.recipe)
    for step, batch in enumerate(batches):
        plain.step(step, *batch)
    return dict(agent.initial.state_dict())


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
async def test_training_is_one_process_bit_for_bit(placement):
    async with running_trainer() as server, PlacedAgent(placement, {"gpu": server.address}) as agent:
        await agent.begin()
        await agent.train(0, BATCHES)
        assert_same_bits(plain_state(agent, placement), await agent.state())
        await agent.end_links()
        await agent.close()
