"""The profile of a chain: two trainers and a device, measured over real sockets, interrupted, and refused."""

import math
from contextlib import asynccontextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.main import app
from edge_agent.planning import Question, SearchSpace, best, best_order
from edge_agent.planning.prediction import LatencyTable, Sample, contiguous, vector
from edge_agent.planning.profile import load_profile
from edge_agent.profiling.events import Estimated
from edge_agent.profiling.workers.chain_profile import profile_chain
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError, ExitCode, PlanError, RefusedError, UnreachableError
from tests.support import latency
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED, addresses_of, running_trainers, trainers_flag
from tests.support.running import edge_config, emit_to, running_trainer
from tests.support.small_trainers import have_room_for

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("edge", "near", "far")
BLOCKS, CUTS = 4, 5
MODEL = "shared.model.zoo:residual_cnn"
QUICK = 2
"""Steps that each run is timed for."""


def config_at(servers, *more):
    return edge_config(*flags("cnn", "sgd"), trainers_flag(addresses_of(servers), NAMES), *more)


def measured_runs(worker):
    return {(int(first), int(stop)) for first, stop in np.argwhere(~np.isnan(worker.replayed))}


@asynccontextmanager
async def measuring(monkeypatch):
    """Trainers, and the runs that they are asked to measure, by session."""
    asked, measure_stage = [], TrainerClient.measure_stage

    async def noted(self, session_id, first, stop, repeats, samples):
        asked.append((self.address, first, stop))
        return await measure_stage(self, session_id, first, stop, repeats, samples)

    monkeypatch.setattr(TrainerClient, "measure_stage", noted)
    async with running_trainers() as servers:
        yield servers, asked
        assert not any(len(server.service.sessions) for server in servers.values()), "nothing is left there"


def noting(lines):
    """Return what emits to a list of the lines of an estimate."""
    return emit_to({Estimated: lambda event: lines.append(event.line)})


@pytest.mark.slow
async def test_what_each_worker_may_have_is_measured_and_every_link(tmp_path):
    path, told = tmp_path / "chain.json", []
    async with running_trainers() as servers:
        chain = await profile_chain(config_at(servers), path, QUICK, noting(told))
    assert load_profile(path) is not None
    assert chain.names == tuple(NAMES)
    edge, near, far = map(measured_runs, chain.workers)
    assert edge == {(0, 1), (0, 2)}, "two blocks are left to the others"
    assert near == {(1, 2), (1, 3), (2, 3)}
    assert far == {(2, 4), (3, 4)}
    assert set(chain.links) == {("edge", "near"), ("near", "far")}
    assert all(link.uplink > 0 and link.downlink > 0 for link in chain.links.values())
    assert chain.batch_size == 32
    planned = best(Question(chain, SearchSpace((8, 32), 2))).layout
    assert planned.tiles[0].worker == "edge", "a worker may be left empty, and the device runs the first block"
    assert planned.tiles[-1].stop == BLOCKS
    assert not list(tmp_path.glob("*.parts"))
    assert told[0].startswith("edge: 6 measurements of 2 runs of blocks")
    assert any("edge-near, near-far" in line and "5.6 MB" in line for line in told)
    assert told[-1].startswith("about ")


@pytest.mark.slow
async def test_in_any_order_a_trainer_is_measured_wherever_it_may_stand(tmp_path):
    path = tmp_path / "chain.json"
    async with running_trainers() as servers:
        chain = await profile_chain(config_at(servers), path, QUICK, any_order=True)
    _, near, far = map(measured_runs, chain.workers)
    assert near == far == {(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)}
    assert set(chain.links) == {("edge", "near"), ("near", "far"), ("edge", "far")}
    assert best_order(Question(load_profile(path), SearchSpace((8, 32), 2))).names[0] == "edge"


async def test_a_placement_names_the_stages(tmp_path):
    placed = ['placement.edge="0:2"', 'placement.far="2:"']
    async with running_trainers() as servers:
        chain = await profile_chain(config_at(servers, *placed), tmp_path / "c.json", QUICK)
    assert chain.names == ("edge", "far")
    assert measured_runs(chain.worker("far")) == {(1, 4), (2, 4), (3, 4)}


async def interrupt(config, path, asked, after):
    """Begin a profile whose trainers are lost after so many measurements."""
    measure_stage = TrainerClient.measure_stage

    async def lost(self, *arguments):
        if len(asked) == after:
            raise UnreachableError("the trainer is away")
        return await measure_stage(self, *arguments)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(TrainerClient, "measure_stage", lost)
        with pytest.raises(UnreachableError):
            await profile_chain(config, path, QUICK)


@pytest.mark.slow
async def test_a_profile_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch):
    path, told = tmp_path / "chain.json", []
    async with measuring(monkeypatch) as (servers, asked):
        await interrupt(config_at(servers), path, asked, after=4)
        assert not path.exists()
        await profile_chain(config_at(servers), path, QUICK, noting(told))
    assert len(asked) == 3 * 5, "nothing was measured twice"
    left = [int(line.split()[1]) for line in told[:3]]
    assert sum(left[1:]) == 3 * 5 - 4
    assert path.exists()


async def test_parts_of_another_profile_are_refused_and_stay(tmp_path, monkeypatch):
    path = tmp_path / "chain.json"
    async with measuring(monkeypatch) as (servers, asked):
        await interrupt(config_at(servers), path, asked, after=4)
    parts = tmp_path / "chain.json.parts"
    before = parts.read_bytes()
    nowhere = nowhere_flags("near", "far")
    for more, sentence in (
        (["data.batch_size=16"], "has batch size 32, and this profile has 16"),
        (["model.kwargs={width=4}"], "has arguments "),
        (
            ['model.factory="shared.model.zoo:separable_cnn"', "model.kwargs={channels=1}"],
            "has model shared.model.zoo:resi",
        ),
        (['placement.edge="0:2"', 'placement.far="2:"'], "has workers edge, near, far, and this profile has edge, far"),
        (["deployment.staleness=3"], "has staleness 0"),
    ):
        with pytest.raises(PlanError, match=f"{sentence}.*; remove that file") as refused:
            await profile_chain(edge_config(*nowhere, *more), path, QUICK)
        assert refused.value.exit_code is ExitCode.PLAN
        assert parts.read_bytes() == before
    assert not path.exists()


async def test_a_run_that_a_worker_has_no_room_for_is_left_out(tmp_path, monkeypatch):
    have_room_for(monkeypatch, 1)
    async with running_trainers() as servers:
        chain = await profile_chain(config_at(servers), tmp_path / "chain.json", QUICK)
    assert list(map(measured_runs, chain.workers[1:])) == [{(1, 2), (2, 3)}, {(3, 4)}]


def table_of(**changes):
    """Every run of blocks takes 7 s on some device."""
    fields = {"model": MODEL, "batch_size": 32, "layers": BLOCKS} | changes
    vectors = [vector(*run, fields["layers"]) for run in contiguous(fields["layers"])]
    samples = tuple(Sample(layers=layers, seconds=7.0) for layers in vectors)
    return LatencyTable(**fields, device="pi", reference=tuple(range(10)), samples=samples, flops=None)


@pytest.mark.slow
async def test_what_a_table_has_is_not_measured(tmp_path, monkeypatch):
    told = []
    async with measuring(monkeypatch) as (servers, asked):
        chain = await profile_chain(
            config_at(servers), tmp_path / "chain.json", QUICK, noting(told), tables={"near": table_of()}
        )
        assert {address for address, _, _ in asked} == {str(addresses_of(servers)["far"])}
    edge, near, far = chain.workers
    assert np.nanmax(near.replayed) == np.nanmin(near.replayed) == 7.0
    assert measured_runs(near) == {(1, 2), (1, 3), (2, 3)}
    assert max(np.nanmax(edge.replayed), np.nanmax(far.replayed)) < 7.0
    assert told[1].startswith("near: 0 measurements of 0 runs of blocks")
    assert told[1].endswith("3 runs from its table")


@pytest.mark.parametrize(
    ("worker", "table", "more", "error", "sentence"),
    [
        ("gpu", table_of(), [], ConfigError, "--table names 'gpu'; the workers of this chain are edge, near, far"),
        ("near", table_of(layers=5), [], PlanError, "the table of 'near' has layers 5, and this chain has 4"),
        ("near", table_of(batch_size=8), [], PlanError, "has batch size 8, and this chain has 32"),
        ("near", table_of(model="a:b"), [], PlanError, "has model a:b"),
        (
            "near",
            table_of(),
            ["deployment.staleness=2"],
            ConfigError,
            "a latency table is without the replay that 'near' does",
        ),
    ],
)
async def test_a_table_that_does_not_fit_is_refused_before_anybody_is_asked(
    tmp_path, worker, table, more, error, sentence
):
    config = edge_config(*nowhere_flags("near", "far"), *more)
    with pytest.raises(error, match=sentence):
        await profile_chain(config, tmp_path / "c.json", QUICK, tables={worker: table})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (["near"], "--table is 'near'; it must be the name of a worker and a file"),
        (["near=a.json", "near=b.json"], "--table is given twice for one worker: near=a.json, near=b.json"),
    ],
)
def test_a_table_is_given_by_name_and_once(tmp_path, tables, sentence):
    chosen = [f"--set={flag}" for flag in nowhere_flags("near", "far")]
    given = [f"--table={table}" for table in tables]
    said = CliRunner().invoke(app, ["profile", "--out", str(tmp_path / "c.json"), *chosen, *given])
    assert isinstance(said.exception, ConfigError)
    assert sentence in str(said.exception)


def test_known_devices_complete_a_table(tmp_path):
    whole = {f"d{kind}": latency.table_of(f"d{kind}", latency.costs_of(kind, 5), model=MODEL) for kind in (0, 1, 3)}
    ten = whole["d3"].model_copy(update={"samples": whole["d3"].samples[:10], "reference": tuple(range(10))})
    known = [f"--known={latency.write_table(tmp_path, whole[name])}" for name in ("d0", "d1")]
    flags = [*nowhere_flags("near", "far"), "model.kwargs={width=8, blocks=3}"]
    given = [f"--table=far={latency.write_table(tmp_path, ten)}", *(f"--set={flag}" for flag in flags)]
    said = [
        command(app, "profile", "--out", str(tmp_path / "c.json"), "--dry-run", *given, *more) for more in ((), known)
    ]
    assert ["; 3 runs from its table" in text.splitlines()[2] for text in said] == [False, True]


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (["--device", "pi"], ConfigError, "--device and --known are for a latency table; give --worker"),
        (["--known", "a.json"], ConfigError, "--device and --known are for a latency table; give --worker"),
        (["--worker", "near", "--known", "a.json", "--known", "a.json"], ConfigError, "--known names a file twice"),
        (["--worker", "near", "--device", ""], ConfigError, '--device is ""; it must be a name'),
        (["--worker", "near", "--tiers"], PlanError, "--tiers says nothing about a latency table; leave it out"),
        (["--worker", "gpu"], ConfigError, "the workers of this configuration are edge, near, far"),
    ],
)
def test_what_makes_no_latency_table_is_refused(tmp_path, options, error, sentence):
    chosen = [f"--set={flag}" for flag in nowhere_flags("near", "far")]
    said = CliRunner().invoke(app, ["profile", "--out", str(tmp_path / "t.json"), *chosen, *options])
    assert isinstance(said.exception, error)
    assert sentence in str(said.exception)
    assert not list(tmp_path.iterdir())


async def test_where_nothing_is_replayed_a_table_does(tmp_path):
    tables = {"far": table_of(), "near": table_of()}
    for backward, names in (("stash", ("far", "near")), ("replay", ("far",))):
        config = edge_config(
            *nowhere_flags("near", "far"), "deployment.staleness=2", f'deployment.backward="{backward}"'
        )
        told, known = [], {name: tables[name] for name in names}
        out = tmp_path / "c.json"
        assert await profile_chain(config, out, QUICK, noting(told), tables=known, dry_run=True) is None
        assert told[2].endswith("2 runs from its table"), "the last worker never waits"


def nowhere_flags(*names):
    listed = ", ".join(f'{{name="{name}", address="127.0.0.1:1"}}' for name in names)
    return [*flags("cnn", "sgd"), f"trainers=[{listed}]"]


@pytest.mark.slow
async def test_a_finished_profile_of_another_chain_is_not_replaced(tmp_path):
    path = tmp_path / "chain.json"
    async with running_trainers() as servers:
        await profile_chain(config_at(servers), path, QUICK)
    before = path.read_bytes()
    others = edge_config(*nowhere_flags("near", "cloud"))
    with pytest.raises(PlanError, match="has workers edge, near, far, and this one has edge, near, cloud"):
        await profile_chain(others, path, QUICK)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (['placement.edge=["0:1", "3:"]', 'placement.near="1:3"'], "has no chain that could be measured"),
        (["deployment.cut=1"], "deployment.cut is 1, which is the cut of two workers"),
    ],
)
async def test_what_is_no_chain_is_refused_before_anybody_is_asked(tmp_path, more, sentence):
    config = edge_config(*nowhere_flags("near", "far"), *more)
    with pytest.raises(ConfigError, match=sentence):
        await profile_chain(config, tmp_path / "chain.json", QUICK)
    assert not list(tmp_path.iterdir())


async def test_where_no_trainer_answers_nothing_is_left_here(tmp_path):
    away = '{name="near", address="127.0.0.1:1", connect_timeout_seconds=0.2}'
    config = edge_config(*flags("cnn", "sgd"), f'trainers=[{away}, {{name="far", address="127.0.0.1:1"}}]')
    with pytest.raises(UnreachableError, match="no trainer answered at"):
        await profile_chain(config, tmp_path / "chain.json", QUICK)
    assert not list(tmp_path.iterdir())


async def test_more_workers_than_blocks_are_refused(tmp_path):
    config = edge_config(*nowhere_flags("a", "b", "c", "d"))
    with pytest.raises(PlanError, match="there are 5 workers and 4 blocks, and each worker must have a block at least"):
        await profile_chain(config, tmp_path / "chain.json", QUICK)


async def test_behind_an_embedding_the_device_keeps_what_it_must(tmp_path):
    told = []
    config = edge_config(*flags("lstm", "sgd"), *nowhere_flags("near", "far")[-1:])
    await profile_chain(config, tmp_path / "chain.json", QUICK, noting(told), dry_run=True)
    assert told[0].startswith("edge: 3 measurements of 1 runs of blocks"), "blocks [0, 2) of four"


@pytest.mark.slow
async def test_a_trainer_that_may_not_dial_the_next_one_is_named(tmp_path):
    async with running_trainer() as near, running_trainer(PEERS_ALLOWED) as far:
        config = config_at({"near": near, "far": far})
        with pytest.raises(RefusedError, match=r"may not dial .*\(peers\.allowed\)"):
            await profile_chain(config, tmp_path / "chain.json", QUICK)


def test_a_dry_run_says_what_it_costs_and_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = [f"--set={flag}" for flag in (*nowhere_flags("near", "far"), "compute.threads=1")]
    told = command(app, "profile", "--out", "chain.json", "--dry-run", *chosen)
    assert "near: 9 measurements of 3 runs of blocks, 4 steps each" in told
    seconds = float(told.partition("about ")[2].partition(" s")[0])
    assert math.isfinite(seconds)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--table=far=far.json", "--order=any"])
def test_what_is_for_a_chain_is_refused_with_one_trainer(option):
    with pytest.raises(ConfigError, match="are for several trainers, and only one is configured"):
        command(app, "profile", "--out", "profile.json", option)


def test_a_dry_run_says_what_a_pair_costs_and_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = [f"--set={flag}" for flag in (*nowhere_flags("far"), "compute.threads=1")]
    told = command(app, "profile", "--out", "profile.json", "--dry-run", *chosen)
    assert "edge at K = 0: 12 measurements of 4 runs of blocks, 4 steps each" in told
    assert "far: 9 measurements of 3 runs of blocks, 4 steps each" in told
    assert not list(tmp_path.iterdir())


def test_a_chain_is_not_calibrated():
    chosen = [f"--set={flag}" for flag in nowhere_flags("near", "far")]
    with pytest.raises(ConfigError, match="--calibrate finds out what a pair of workers bears"):
        command(app, "profile", "--out", "chain.json", "--calibrate", *chosen)
