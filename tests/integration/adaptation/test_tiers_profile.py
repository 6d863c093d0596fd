"""The profile of three tiers: a device and two trainers, measured over real sockets, planned from, and refused."""

import json
import threading

import pytest

from edge_agent.main import app
from edge_agent.planning import load_profile
from edge_agent.profiling.events import Estimated
from edge_agent.profiling.workers import tiers_profile
from edge_agent.profiling.workers.tiers_profile import profile_tiers
from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError, PlanError, UnreachableError
from shared.training import measure
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.models import paced
from tests.support.placement_kinds import addresses_of, running_trainers, trainers_flag
from tests.support.running import edge_config, emit_to

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("edge", "near", "far")
BLOCKS, BATCH, PIECES = 4, 32, 4 * 3


def config_at(servers, *more):
    return edge_config(*flags("cnn", "sgd"), trainers_flag(addresses_of(servers), NAMES), *more)


def nowhere(*names):
    listed = ", ".join(f'{{name="{name}", address="127.0.0.1:1"}}' for name in names)
    return [*flags("cnn", "sgd"), f"trainers=[{listed}]"]


@pytest.mark.slow
async def test_every_block_is_measured_by_samples_on_every_worker_and_every_link(tmp_path):
    path, told = tmp_path / "tiers.json", []
    async with running_trainers() as servers:
        emit = emit_to({Estimated: lambda event: told.append(event.line)})
        profile = await profile_tiers(config_at(servers), path, 2, emit)
        assert not any(len(server.service.sessions) for server in servers.values()), "nothing is left there"
    assert load_profile(path).names == profile.names == NAMES
    assert not list(tmp_path.glob("*.parts"))
    assert [line.split(" measurements")[0] for line in told[:3]] == [f"{name}: {3 * PIECES}" for name in NAMES]
    document = json.loads(path.read_bytes())
    assert [block.get("min_samples", 1) for block in document["blocks"]] == [2, 2, 2, 1], "batch-norm needs two"
    assert document["sample_bytes"][0] == 4 * 64
    assert [block.get("reads_raw", False) for block in document["blocks"]] == [True, False, False, False]
    assert not any("whole" in block for block in document["blocks"])
    assert document["label_bytes"] == 1, "as they travel"
    workers = [worker["by_samples"] for worker in document["workers"]]
    for worker in workers:
        for way in ("forward", "backward"):
            assert all(constant + BATCH * slope > 0 for constant, slope in worker[way]), way
        assert all(seconds > 0 for seconds in worker["update"])
    assert [link["between"] for link in document["links"]] == [["edge", "near"], ["edge", "far"], ["near", "far"]]
    assert all(part >= 0 for worker in workers for part in worker.get("message", ())), "a busy machine may hide it"
    assert told[-1].startswith("in steps: 8 divisions, ")
    assert all(codec["bits"] < 32 for codec in document["codecs"].values())


@pytest.mark.slow
async def test_a_plan_of_it_trains(tmp_path):
    path, placed = tmp_path / "tiers.json", tmp_path / "placement.json"
    async with running_trainers() as servers:
        await profile_tiers(config_at(servers), path, 2)
        planned = ["plan", f"--profile={path}", "--bits=32", "--planner=hiertrain", f"--placement-out={placed}"]
        assert " a step" in command(app, *planned)
        config = config_at(servers, f'placement.file="{placed}"', "training.max_steps=2")
        assert (await run_training(config)).summary.steps == 2


class Clock(threading.local):
    """A clock of each thread, on which nothing passes but sleeps and a microsecond a look: no load of the machine is seen."""

    seconds = 0.0

    def sleep(self, seconds):
        self.seconds += seconds

    def perf_counter(self):
        self.sleep(1e-6)
        return self.seconds


@pytest.mark.full
async def test_what_a_sample_costs_is_the_slope_of_its_block(tmp_path, monkeypatch):
    clock = Clock()
    for module in (measure, paced):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(tiers_profile, "tried_divisions", lambda *_: {})  # steps of training have the machine's clock
    model = ['model.factory="tests.support.models.paced:paced_by_sample"', "model.kwargs={seconds=0.001}"]
    data = ['data.train={factory="tests.support.samples:FlatDigits"}', f"data.batch_size={BATCH}"]
    async with running_trainers() as servers:
        config = edge_config(*model, *data, trainers_flag(addresses_of(servers), NAMES))
        profile = await profile_tiers(config, tmp_path / "tiers.json", 2)
    for blocks in profile.by_samples.blocks.values():
        quick = [line for block in blocks for line in (block.forward, block.backward) if line is not blocks[1].forward]
        assert blocks[1].forward.seconds_per_unit == pytest.approx(0.001)
        assert blocks[1].forward.seconds == pytest.approx(0.0, abs=1e-5)
        assert all(line.at(BATCH) < 1e-5 for line in quick), "the forward of this block alone takes its time"


@pytest.mark.full
async def test_one_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch):
    path, asked, measure_stage = tmp_path / "tiers.json", [], TrainerClient.measure_stage

    async def noted(self, session_id, *piece):
        if len(asked) == 5 and not path.with_name("was lost").exists():
            path.with_name("was lost").touch()
            raise UnreachableError("the trainer is away")
        asked.append(piece)
        return await measure_stage(self, session_id, *piece)

    monkeypatch.setattr(TrainerClient, "measure_stage", noted)
    async with running_trainers() as servers:
        with pytest.raises(UnreachableError):
            await profile_tiers(config_at(servers), path, 2)
        assert not path.exists()
        await profile_tiers(config_at(servers), path, 2)
    assert len(asked) == 2 * 3 * PIECES, "nothing was measured twice"
    assert {samples for *_, samples in asked} == {8, 16, 32}


@pytest.mark.parametrize("names", [("near",), ("near", "far", "cloud")])
async def test_three_tiers_are_the_device_and_two_trainers(tmp_path, names):
    with pytest.raises(ConfigError, match=f"this device and 2 trainers, and trainers names {len(names)}"):
        await profile_tiers(edge_config(*nowhere(*names)), tmp_path / "tiers.json", 2)


async def test_blocks_that_use_a_weight_together_are_no_tiers(tmp_path):
    model = ['model.factory="tests.support.models.tied:tied_at_the_end"', "model.kwargs={}"]
    samples = 'data.train={factory="tests.support.samples:FlatDigits"}'
    with pytest.raises(
        PlanError, match="blocks 2, 3 use a weight together, and three tiers are planned block by block"
    ):
        await profile_tiers(edge_config(*nowhere("near", "far"), *model, samples), tmp_path / "tiers.json", 2)
    assert not list(tmp_path.iterdir())


async def test_it_says_what_it_costs_and_ends_there(tmp_path):
    told = []
    emit = emit_to({Estimated: lambda event: told.append(event.line)})
    config = edge_config(*nowhere("near", "far"))
    assert await profile_tiers(config, tmp_path / "tiers.json", 2, emit, dry_run=True) is None
    assert any("edge-near, edge-far, near-far" in line for line in told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (("near",), ["--tiers"], "are for several trainers, and only one is configured"),
        (("near", "far"), ["--tiers", "--order=any"], "--order and --table are for a chain"),
        (("near", "far"), ["--tiers", "--table=near=near.json"], "--order and --table are for a chain"),
        (("near", "far"), ["--tiers", "--calibrate"], "--calibrate finds out what a pair of workers bears"),
    ],
)
def test_options_that_do_not_go_together_are_refused(names, options, sentence):
    chosen = [f"--set={flag}" for flag in nowhere(*names)]
    with pytest.raises(ConfigError, match=sentence):
        command(app, "profile", "--out", "tiers.json", *chosen, *options)
