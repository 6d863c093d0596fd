"""Members of a group that begin as a profile of theirs plans: with a cut or without one, and with the same end."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import ProfiledBlock, profile_to_json
from isthmus import run_training
from shared.errors import PlanError
from shared.placement import AGENT, held_blocks
from tests.support.experiments import flags, profile_of
from tests.support.group_flags import SHARD, STEPS, group_of, member, member_flags, trained
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, edge_config, held_port, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS = 4


@pytest.fixture
def profile(tmp_path):
    """Return a function that writes a profile of the members' model, with these seconds of a block, and returns its flag."""

    def write(here, there):
        config = edge_config(*flags("mlp", "adamw"))
        blocks = tuple(ProfiledBlock(block.name, 1e4, 1e3) for block in Experiment(config).chain.blocks)
        of_model = profile_of(config, alone_seconds=BLOCKS * here)
        edge, cloud = of_model.workers
        edge = replace(edge, replayed=edge.replayed.copy())
        cloud = replace(cloud, replayed=cloud.replayed.copy())
        for cut in range(1, BLOCKS):
            edge.replayed[0, cut], cloud.replayed[cut, BLOCKS] = here * cut, there * (BLOCKS - cut)
        written = replace(of_model, blocks=blocks).with_worker(edge).with_worker(cloud)
        path = tmp_path / f"{here}-{there}.json"
        path.write_text(profile_to_json(written))
        return f'engine.profile="{path}"'

    return write


async def begun(config):
    """Train a member alone in its group; return the blocks that it begins with, its sentences, and its result."""
    held = []
    with structlog.testing.capture_logs() as told:
        result = await run_training(
            config, Listening(session_opened=lambda deployer: held.append(held_blocks(deployer.placement, AGENT)))
        )
    return held[0], told, result


@pytest.mark.first_case
@pytest.mark.parametrize(("here", "there", "expected"), [(1.0, 0.01, (0,)), (0.01, 1.0, (0, 1, 2, 3))])
async def test_a_member_begins_with_the_best_cut_or_with_none(profile, here, there, expected):
    more = [profile(here, there), 'deployment.codec="raw"']
    async with running_trainer(*group_of(1)) as server:
        held, told, result = await begun(member(0, server, size=1, more=more))
    assert held == expected
    assert result.summary.steps == STEPS
    (planned,) = [line for line in told if line["event"] == "beginning as planned"]
    assert (planned["blocks_here"], planned["blocks"]) == (len(expected), BLOCKS)
    assert any(line["event"].startswith("one device alone would do as many") for line in told), (
        "a group of one never wins"
    )


async def test_the_device_alone_may_be_excluded(profile):
    more = [profile(0.01, 1.0), "engine.allow_edge_only=false"]
    async with running_trainer(*group_of(1)) as server:
        held, _, _ = await begun(member(0, server, size=1, more=more))
    assert len(held) < BLOCKS


@pytest.mark.slow
async def test_members_that_begin_with_other_cuts_end_with_the_weights_of_one_loop(profile):
    times = [(1.0, 0.01), (0.01, 1.0)]
    async with running_trainer(*group_of(2)) as server:
        configs = [
            member(rank, server, size=2, more=[SHARD, profile(*each), 'deployment.codec="raw"'])
            for rank, each in enumerate(times)
        ]
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)


@pytest.mark.slow
async def test_a_trainer_that_is_away_at_the_beginning_is_waited_for(profile):
    knocked = asyncio.Event()

    async def away(_, writer):
        knocked.set()
        writer.close()

    with held_port() as port:
        config = edge_config(
            *member_flags(0, size=1, more=[profile(1.0, 0.01), 'deployment.codec="raw"']),
            f"trainer.address=127.0.0.1:{port}",
        )
        nobody = await asyncio.start_server(away, "127.0.0.1", port)
        training = asyncio.create_task(run_training(config))
        async with nobody:
            await knocked.wait()
        async with running_trainer(*group_of(1), f"server.listen=127.0.0.1:{port}"):
            assert (await training).summary.steps == STEPS


async def test_a_link_that_nobody_knows_is_refused(profile):
    with pytest.raises(PlanError, match="nothing is known of the rates of a link from 'edge' to 'trainer'"):
        await run_training(
            edge_config(
                *flags("mlp", "adamw"),
                'group={name="line", size=2}',
                'privacy.gradients_to=["trainer"]',
                "trainer.address=127.0.0.1:1",
                "trainer.give_up_seconds=0",
                "trainer.connect_timeout_seconds=0.5",
                profile(1.0, 1.0),
            )
        )
