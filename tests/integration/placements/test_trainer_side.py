"""A trainer as one worker of any placement: what it computes, what it goes on from, and what it tells of itself."""

import asyncio
import copy
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shared.errors import FencedError, RefusedError, SessionLostError
from shared.placement import AGENT, Cargo, Placement, Route, Rows, Source, Tile, two_workers
from shared.wire.isthmus.v1 import control_pb2
from tests.support.placed import batch_of, chain_of, in_process, state_of
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.running import running_trainer
from tests.support.stand_ins.placed_agent import PlacedAgent

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, BLOCKS = 8, 4
WHOLE = Rows(0, BATCH)
BATCHES = [batch_of(step, samples) for step, samples in enumerate([8, 8, 8, 5, 8, 8])]
HALF = 3


def middle_at(trainer, first=1, stop=3, version=0):
    """The first blocks and the last at the agent, so that labels stay."""
    tiles = (Tile(AGENT, 0, first, WHOLE), Tile(trainer, first, stop, WHOLE), Tile(AGENT, stop, BLOCKS, WHOLE))
    return Placement(version, BLOCKS, BATCH, (AGENT, trainer), tiles, (Source(AGENT, WHOLE),))


CUT = two_workers(AGENT, "gpu", 2, BLOCKS, BATCH)
SHARED = Placement(
    0,
    BLOCKS,
    BATCH,
    (AGENT, "gpu"),
    (Tile(AGENT, 0, 2, Rows(0, 5)), Tile("gpu", 0, 2, Rows(5, 8)), Tile("gpu", 2, BLOCKS, WHOLE)),
    (Source(AGENT, WHOLE),),
    owners={0: "gpu", 1: AGENT},
)
PLACEMENTS = {
    "cut": CUT,
    "labels stay": middle_at("gpu"),
    "inverted": Placement(
        0, BLOCKS, BATCH, CUT.workers, (Tile("gpu", 0, 2, WHOLE), Tile(AGENT, 2, 4, WHOLE)), CUT.sources
    ),
    "shared": SHARED,
    "an owner that runs nothing": replace(
        CUT, tiles=(Tile(AGENT, 0, BLOCKS, WHOLE),), owners=dict.fromkeys(range(BLOCKS), "gpu")
    ),
}


@asynccontextmanager
async def standing(placement, *flags, **choices):
    """An agent that has dialled the one trainer of its session."""
    async with (
        running_trainer("server.accept_inputs=true", *flags) as server,
        PlacedAgent(placement, {"gpu": server.address}, **choices) as agent,
    ):
        await agent.begin()
        yield agent, server


def plain_of(agent, placement):
    return PlainTiles(list(copy.deepcopy(agent.initial)), placement, agent.recipe)


def weights_of(plain):
    return dict(plain.blocks.state_dict())


def chains_of(module, placement):
    return {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}


def trained(agent, placement, batches=BATCHES):
    """The weights of one process that runs the same tiles."""
    plain = plain_of(agent, placement)
    for step, batch in enumerate(batches):
        plain.step(step, *batch)
    return weights_of(plain)


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
async def test_training_is_one_process_bit_for_bit(placement):
    async with standing(placement) as (agent, _):
        await agent.train(0, BATCHES)
        assert_same_bits(trained(agent, placement), await agent.state())
        await agent.end_links()
        await agent.close()


@pytest.mark.first_case
@pytest.mark.parametrize("placement", [CUT, middle_at("gpu"), SHARED], ids=["cut", "labels stay", "shared"])
async def test_links_that_are_lost_again_and_again_change_nothing(placement):
    async with standing(placement, "link.chunk_bytes=4096") as (agent, _):
        training = asyncio.create_task(agent.train(0, BATCHES * 4))
        for step in range(1, 4 * len(BATCHES), 3):
            await agent.heard(step)
            await agent.lose("gpu")
        await training
        assert_same_bits(trained(agent, placement, BATCHES * 4), await agent.state())


async def test_placements_change_between_steps_with_the_blocks_that_move():
    after = [middle_at("gpu", version=1), replace(SHARED, version=2), replace(CUT, version=3)]
    async with standing(CUT) as (agent, _):
        plain = plain_of(agent, CUT)
        for number, placement in enumerate([CUT, *after]):
            if number:
                await agent.commit(placement, number * HALF)
                plain.change(placement)
            batches = BATCHES[:HALF]
            await agent.train(number * HALF, batches)
            for step, batch in enumerate(batches, number * HALF):
                plain.step(step, *batch)
        assert_same_bits(weights_of(plain), await agent.state())


async def test_a_commit_that_is_repeated_changes_nothing():
    async with standing(CUT) as (agent, _):
        await agent.train(0, BATCHES[:HALF])
        await agent.commit(middle_at("gpu", version=1), HALF)
        await agent.train(HALF, BATCHES[HALF:])
        await agent.commit_at("gpu", middle_at("gpu", version=1), HALF)
        assert_same_bits(trained(agent, CUT), await agent.state())


@pytest.mark.parametrize("staleness", [0, 2])
async def test_lossy_codecs_train_as_in_one_process_that_encodes_the_same(staleness):
    codecs = {Route(AGENT, "gpu", Cargo.FEATURE): "uniform8", Route("gpu", AGENT, Cargo.ERROR_GRADIENT): "fp16"}
    placement = replace(CUT, staleness=staleness, codecs=codecs)
    async with standing(placement) as (agent, _):
        await agent.train(0, BATCHES)
        for step in range(len(BATCHES)):
            assert sorted(done.worker for done in agent.done[step]) == [AGENT, "gpu"]
        if staleness == 0:
            chains = chains_of(agent.initial, placement)
            in_process(chains, placement, agent.recipe).train(0, len(BATCHES), iter(BATCHES))
            assert_same_bits(state_of(chains, placement), await agent.state())


async def test_a_restarted_trainer_goes_on_from_a_checkpoint_under_the_placement_of_that_time(tmp_path):
    kept, placement = f"checkpoints.location={tmp_path}", middle_at("gpu", version=1)
    async with standing(CUT, kept) as (agent, server):
        await agent.train(0, BATCHES[:HALF])
        await agent.commit(placement, HALF)
        own = await agent.checkpoint(HALF)
        await agent.train(HALF, BATCHES[HALF:])  # lost with the trainer
        agent.drop_links()
        await server.stop()
        async with running_trainer(kept, "server.accept_inputs=true") as again:
            await agent.go_to("gpu", again.address)
            with pytest.raises(SessionLostError):
                await agent.dial()
            said = (await agent.join())["gpu"]
            assert not said.whole
            assert [(name.lineage, name.step) for name in said.checkpoints] == [(0, HALF)]
            await agent.restore(0, HALF, own, placement)
            await agent.dial()
            await agent.train(HALF, BATCHES[HALF:])
            assert_same_bits(trained(agent, CUT), await agent.state())
            assert (await agent.join())["gpu"].lineage == 2


async def test_another_agent_that_joins_goes_on_from_memory_and_ends_the_links_of_the_first():
    async with standing(CUT) as (agent, _):
        await agent.train(0, BATCHES[:HALF])
        said = (await agent.join())["gpu"]
        assert (said.whole, said.lineage, said.next_step) == (True, 0, HALF)
        with pytest.raises(FencedError):
            await agent.train(HALF, BATCHES[HALF:])
        agent.drop_links()
        await agent.dial()
        begun = agent.worker.executor.window.begun
        await agent.train(begun, BATCHES[begun:])
        assert_same_bits(trained(agent, CUT), await agent.state())


@pytest.mark.first_case
@pytest.mark.parametrize("placement", [CUT, middle_at("gpu"), SHARED], ids=["cut", "labels stay", "shared"])
async def test_an_evaluation_says_what_one_process_says_and_changes_nothing(placement):
    async with standing(placement) as (agent, _):
        await agent.train(0, BATCHES[:HALF])
        before = {name: value.clone() for name, value in (await agent.state()).items()}
        found = await agent.evaluate(BATCHES)
        assert await agent.evaluate(BATCHES) == found
        assert_same_bits(before, await agent.state())
        judge = in_process(chains_of(agent.chain.module, placement), placement, agent.recipe)
        assert found == [judge.evaluate(*batch) for batch in BATCHES]
        await agent.train(HALF, BATCHES[HALF:])
        assert_same_bits(trained(agent, placement), await agent.state())


async def test_a_trainer_that_stops_says_so_and_waits_for_a_checkpoint(tmp_path):
    async with standing(CUT, f"checkpoints.location={tmp_path}") as (agent, server):
        await agent.train(0, BATCHES[:HALF])
        stopping = asyncio.create_task(server.service.stop(60))
        await agent.heard_stopping("gpu")
        await agent.checkpoint(HALF)
        assert not stopping.done()
        await agent.end_links()
        await stopping


async def test_a_session_that_nobody_uses_is_freed_and_what_it_computed_with_ends():
    async with (
        running_trainer("server.unattached_seconds=0.2") as server,
        PlacedAgent(CUT, {"gpu": server.address}) as agent,
    ):
        await agent.open()
        (session,) = server.service.sessions.built
        with pytest.raises(asyncio.CancelledError):
            await session.executor_of(0).failure
        assert server.service.sessions.built == []


async def test_operators_see_the_blocks_that_it_holds_and_its_figures():
    async with standing(middle_at("gpu")) as (agent, server):
        await agent.train(0, BATCHES)
        control = server.service.control(server.stopping)
        (shown,) = (await control.get_status(control_pb2.TrainerControlServiceGetStatusRequest())).status.sessions
        assert (shown.held_blocks, shown.step, shown.deployment.edge_blocks) == ("1:3", len(BATCHES), 2)
        assert shown.state == control_pb2.TRAINER_SESSION_STATE_ATTACHED
        assert shown.bytes_up > 0
        assert shown.bytes_down > 0
        assert server.counted("isthmus_steps_total") == len(BATCHES)
        assert server.counted("isthmus_samples_total") == sum(len(labels) for _, labels in BATCHES)
        said = await agent.trainers["gpu"].get_session(agent.sessions["gpu"])
        assert (said.next_step, said.attached) == (len(BATCHES), True)
        await agent.end_links()
        assert not (await agent.trainers["gpu"].get_session(agent.sessions["gpu"])).attached


async def test_a_step_that_fails_leaves_a_worker_that_is_not_whole_and_goes_on_from_a_checkpoint(tmp_path):
    async with standing(CUT, f"checkpoints.location={tmp_path}") as (agent, server):
        await agent.train(0, BATCHES[:HALF])
        own = await agent.checkpoint(HALF)
        (session,) = server.service.sessions.built

        def fail(*_):
            raise RuntimeError("the block is\nbroken")

        broken = session.blocks.held.chain.blocks[3].module.register_forward_pre_hook(fail)
        with pytest.raises(RefusedError, match="RuntimeError: the block is broken"):
            await agent.train(HALF, BATCHES[HALF:])
        broken.remove()
        agent.drop_links()
        assert not (await agent.join())["gpu"].whole
        await agent.dial()
        with pytest.raises(RefusedError, match="the block is broken"):
            await agent.heard(HALF + 1)
        agent.drop_links()
        await agent.restore(0, HALF, own, CUT)
        await agent.dial()
        await agent.train(HALF, BATCHES[HALF:])
        assert_same_bits(trained(agent, CUT), await agent.state())
