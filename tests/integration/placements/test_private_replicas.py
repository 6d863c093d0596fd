"""Replicas of blocks whose weights tell of samples or labels: with a trainer that may know these, and else with the device."""

import shutil
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import RefusedError, StoppedError
from tests.integration.placements.test_replicas import NAME, standing
from tests.support.experiments import flags
from tests.support.placement_kinds import ACCEPTS_INPUTS, PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
STOPPED_AT = 8
NEAR_HAS_SAMPLES = ["placement.near=0:2", "placement.far=2:", 'privacy.inputs_to=["near"]']
LABELS_AT_FAR = ["placement.edge=0:1", "placement.near=1:3", "placement.far=3:"]


@asynccontextmanager
async def trainers(folder, *of_far):
    """The flags of an agent that has two trainers, near and far; near takes samples. of_far: flags of the other one."""
    more = {"near": (ACCEPTS_INPUTS,), "far": of_far}
    kept = {name: [PEERS_ALLOWED, f"checkpoints.location={folder / name}", *more[name]] for name in more}
    async with running_trainer(*kept["near"]) as near, running_trainer(*kept["far"]) as far:
        named = ", ".join(
            f'{{name="{name}", address="{server.address}"}}' for name, server in (("near", near), ("far", far))
        )
        yield [f"trainers=[{named}]", f"checkpoints.location={folder / 'edge'}"]


def config_of(addressed, placed):
    length = ["training.max_steps=20", "checkpoints.every_steps=4", "checkpoints.replicas=1"]
    return edge_config(*flags("cnn", "adam"), *addressed, *placed, *length)


async def train_some_steps(config):
    stop = Shutdown()
    with pytest.raises(StoppedError):
        await run_training(
            config, Listening(lambda now: stop.drain() if now.steps == STOPPED_AT else None), shutdown=stop
        )


def kept_by(folder, worker):
    """The blocks of which a worker keeps replicas."""
    return {int(path.stem.rpartition("-")[2]) for path in (folder / worker).rglob("*.block-*.safetensors")}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("placed", "of_edge", "of_near", "of_far"),
    [
        pytest.param(NEAR_HAS_SAMPLES, {0}, {2, 3}, {1}, id="the first block"),
        pytest.param([*NEAR_HAS_SAMPLES, 'privacy.gradients_to=["far"]'], set(), {2, 3}, {0, 1}, id="first, permitted"),
        pytest.param(LABELS_AT_FAR, set(), {3}, {1, 2}, id="labels wherever the loss is"),
        pytest.param([*LABELS_AT_FAR, 'placement.labels="far"'], {3}, set(), {1, 2}, id="the last block"),
        pytest.param(
            [*LABELS_AT_FAR, 'placement.labels="far"', 'privacy.gradients_to=["near"]'],
            set(),
            {3},
            {1, 2},
            id="last, permitted",
        ),
    ],
)
async def test_a_neighbour_keeps_what_it_may_know_and_the_device_the_rest(placed, of_edge, of_near, of_far, tmp_path):
    async with trainers(tmp_path, ACCEPTS_INPUTS) as addressed:
        await train_some_steps(config_of(addressed, placed))
        assert [kept_by(tmp_path, worker) for worker in ("edge", "near", "far")] == [of_edge, of_near, of_far]


@pytest.mark.slow
async def test_a_trainer_that_lost_its_disk_has_its_first_block_from_the_device(tmp_path):
    async with trainers(tmp_path) as addressed:
        await train_some_steps(config_of(addressed, NEAR_HAS_SAMPLES))
    shutil.rmtree(tmp_path / "near")
    async with trainers(tmp_path) as addressed:
        config, steps = config_of(addressed, NEAR_HAS_SAMPLES), []
        result = await run_training(config, Listening(lambda now: steps.append(now.steps)), resume=Resume())
    assert min(step for step in steps if step) >= STOPPED_AT
    assert_same_bits(plain_state(config), result.module.state_dict())


async def test_what_a_trainer_refuses_to_keep_the_device_keeps(tmp_path):
    async with trainers(tmp_path) as addressed:
        with capture_logs() as logs:
            await train_some_steps(config_of(addressed, [*NEAR_HAS_SAMPLES, 'privacy.gradients_to=["far"]']))
        assert [kept_by(tmp_path, worker) for worker in ("edge", "far")] == [{0}, {1}]
    told = [entry for entry in logs if entry["event"].startswith("a trainer keeps no replicas")]
    assert [entry["trainer"] for entry in told] == ["far"]
    assert "server.accept_inputs" in told[0]["reason"]


async def test_a_trainer_that_takes_no_samples_refuses_a_replica_that_tells_them(tmp_path):
    async with standing(tmp_path) as agent:
        ticket = await agent.offer("near", "far", [0], NAME)
        with pytest.raises(RefusedError, match=r"block 0 .* could tell raw samples to 'far', .*server\.accept_inputs"):
            await agent.fetch("far", "near", ticket, [0], checkpoint=NAME)
    async with standing(tmp_path / "accepting", ACCEPTS_INPUTS) as agent:
        ticket = await agent.offer("near", "far", [0], NAME)
        with pytest.raises(Exception, match="block 0 of checkpoint 0-3 is not at 'near'"):
            await agent.fetch("far", "near", ticket, [0], checkpoint=NAME)
