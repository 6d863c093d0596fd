"""Three tiers that train as their profile plans, and go to other shares where a worker becomes slow: the weights stay those of
one process."""

import asyncio
import json

import pytest

from edge_agent.adaptation import polling
from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.adaptation.engine_inputs import load_run_profile, make_engine
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import SCHEMA
from edge_agent.planning.cost import computing_seconds
from edge_agent.planning.engine import devices
from edge_agent.training.events import Placed
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, PlanError
from tests.support.placement_kinds import addresses_of, running_trainers, trainers_flag
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import plain_tiles
from tests.support.running import Listening, edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES, BATCH, SAMPLE_SECONDS = ("edge", "near", "far"), 32, 0.0005
MODEL = (
    'model.factory="tests.support.models.paced:paced_by_sample"',
    f"model.kwargs={{seconds={SAMPLE_SECONDS}}}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    f"data.batch_size={BATCH}",
    "training.epochs=20",
    "training.evaluate_every_epochs=0",
)
STEPS, SLOW_FROM = 240, 30


def tiers_file(path, **changes):
    """A file of that model: the second block takes its time for each sample, on every worker."""
    blocks = [
        {"name": name, "bytes": 4 * numbers, "parameter_bytes": 4 * numbers, "reads_raw": name == "0"}
        for name, numbers in (("0", 2080), ("1", 528), ("2", 170))
    ]
    document = {
        "schema": SCHEMA,
        "model": "paced",
        "batch_size": BATCH,
        "label_bytes": 1,
        "blocks": blocks,
        "sample_bytes": [256, 128, 64, 40],
        "workers": [
            {
                "name": name,
                "by_samples": {
                    "forward": [[1e-4, 0], [1e-4, SAMPLE_SECONDS], [1e-4, 0]],
                    "backward": [[2e-4, 0]] * 3,
                    "update": [1e-4] * 3,
                },
            }
            for name in NAMES
        ],
        "links": [
            {"between": list(hop), "uplink": 1e9, "downlink": 1e9, "round_trip_seconds": 0.0005}
            for hop in (("edge", "near"), ("edge", "far"), ("near", "far"))
        ],
    }
    path.write_text(json.dumps(document | changes))
    return f'engine.profile="{path}"'


def samples_of(placement, block=1):
    """Count the samples of each worker with a block."""
    return {tile.worker: tile.rows.count for tile in placement.holders(block)}


class Watching(Listening):
    """Notes the placements of a run with the steps at which they come into force."""

    def __init__(self):
        super().__init__(self._progressed_to, others={Placed: self._place})
        self.steps, self.placed = 0, []

    def _progressed_to(self, statistics):
        self.steps = statistics.steps

    def _place(self, event):
        self.placed.append((self.steps, event.placement))


def nowhere():
    return trainers_flag(dict.fromkeys(NAMES, "127.0.0.1:1"), NAMES)


@pytest.mark.slow
async def test_a_run_begins_as_planned_and_gives_a_slow_worker_fewer_samples(tmp_path, monkeypatch):
    engine, watching = tiers_file(tmp_path / "tiers.json"), Watching()
    monkeypatch.setattr(polling, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(devices, "WINDOW_SECONDS", 0.2)  # as much shorter as the time between two looks

    def take_seconds(self):
        seconds = computing_seconds(self.engine.question.profile, self.engine.layout)
        slower = {1: 6.0} if watching.steps >= SLOW_FROM else {}
        return {NAMES[place]: each * slower.get(place, 1.0) for place, each in seconds.items()}

    monkeypatch.setattr(DecisionLoop, "take_seconds", take_seconds)
    async with running_trainers() as servers, asyncio.timeout(120):
        config = edge_config(
            *MODEL,
            trainers_flag(addresses_of(servers), NAMES),
            engine,
            "engine.bits=[32]",
            "engine.dwell_seconds=0.2",
            f"training.max_steps={STEPS}",
        )
        result = await run_training(config, watching)
    first, last = (samples_of(placement) for _, placement in (watching.placed[0], watching.placed[-1]))
    assert set(first) == set(NAMES), "all three have a part, because the block takes long everywhere"
    assert last.get("near", 0) < first["near"], "it has become six times as slow"
    assert_same_bits(replayed(config, watching.placed), result.module.state_dict())


def replayed(config, placed):
    """The state dict after the same steps, run by one process under the placements that were logged."""
    experiment = Experiment(config)
    (_, first), *later = placed
    tiles = plain_tiles(experiment.chain, first, experiment.recipe)
    changes = dict(later)
    for batch in experiment.loader.iterate(0, experiment.steps):
        if batch.step in changes:
            tiles.change(changes[batch.step])
        tiles.step(batch.step, batch.inputs, batch.labels)
    return experiment.chain.module.state_dict()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 7}, "the profile is for batches of 7 and data.batch_size is 32"),
        (
            {"blocks": [{"name": "a", "bytes": 1, "parameter_bytes": 1, "reads_raw": True}] * 3},
            "with the blocks a, a, a",
        ),
        ({"schema": "isthmus.tiers/v1"}, 'schema is "isthmus.tiers/v1"'),
    ],
)
async def test_a_profile_of_something_else_is_refused_before_anything_is_asked(tmp_path, changes, sentence):
    engine = tiers_file(tmp_path / "tiers.json", **changes)
    with pytest.raises(PlanError, match=sentence) as refused:
        await run_training(edge_config(*MODEL, nowhere(), engine))
    assert refused.value.exit_code is ExitCode.PLAN


async def test_the_tiers_of_the_profile_are_the_workers_of_the_run(tmp_path):
    engine = tiers_file(tmp_path / "tiers.json")
    two = trainers_flag(dict.fromkeys(("near", "cloud"), "127.0.0.1:1"), ("near", "cloud"))
    with pytest.raises(
        PlanError, match="the tiers are edge, near, far, and the placement's workers are edge, near, cloud"
    ):
        await run_training(edge_config(*MODEL, two, engine))


async def test_a_cut_is_of_two_workers(tmp_path):
    engine = tiers_file(tmp_path / "tiers.json")
    with pytest.raises(
        ConfigError, match=r"deployment\.cut is 1, which is the cut of two workers, and trainers names several"
    ):
        await run_training(edge_config(*MODEL, nowhere(), engine, "deployment.cut=1"))


@pytest.mark.parametrize("inputs_to", [(), ("far",)])
def test_what_may_not_be_is_known_before_anything_is_chosen(tmp_path, inputs_to):
    engine = tiers_file(tmp_path / "tiers.json")
    permitted = f"privacy.inputs_to={json.dumps(inputs_to)}"
    experiment = Experiment(edge_config(*MODEL, nowhere(), engine, permitted, "engine.allow_edge_only=false"))
    question = make_engine(experiment, load_run_profile(experiment)).question
    assert [block.reads_raw for block in question.profile.blocks] == [True, False, False]
    assert question.space.inputs_to == frozenset(inputs_to)
    assert question.space.labels_to is None
    assert question.profile.max_staleness == 0
    assert experiment.placement.workers == NAMES
