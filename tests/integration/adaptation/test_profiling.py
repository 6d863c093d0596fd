"""The offline profile of a small network with a real trainer."""

import json

import numpy as np
import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Linear, MessageSeconds, Rates, load_profile, profile_to_json
from edge_agent.planning.profile import NO_OVERHEAD
from edge_agent.planning.schedules import layers_of
from edge_agent.profiling.codec_times import ENCODE_SIZES_BYTES, codec_line
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.lines import line_through
from edge_agent.profiling.rounds import ROUNDS
from edge_agent.profiling.workers.pair_profile import profile_pair
from edge_agent.sessions.open_session import OpenSession
from shared.client.trainer import TrainerClient
from shared.errors import RefusedError, UnreachableError
from tests.integration.training.test_models import PERMITTED, SEQUENCES
from tests.support.experiments import flags
from tests.support.running import edge_config, emit_to, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


async def profiled(path, *more):
    seen = []
    emit = emit_to({PieceMeasured: lambda event: seen.append((event.done, event.total))})
    async with running_trainer() as server:
        config = edge_config(*flags("cnn", "sgd"), f"trainer.address={server.address}", *more)
        profile = await profile_pair(config, path, 2, emit)
    return profile, seen


@pytest.mark.slow
async def test_everything_that_can_be_measured_is(tmp_path):
    path = tmp_path / "profile.json"
    profile, seen = await profiled(path)
    blocks = len(profile)
    assert profile_to_json(load_profile(path)) == profile_to_json(profile)
    pieces = ROUNDS * (blocks + blocks + blocks - 1)
    assert seen == [(piece, pieces) for piece in range(1, pieces + 1)]
    edge, trainer = profile.workers
    for table in (edge.replayed, edge.serial):
        assert np.isfinite(table[0, 1:]).all()
        assert np.isfinite(table).sum() == blocks
    assert np.isfinite(trainer.replayed[1:blocks, blocks]).all()
    chain = Experiment(edge_config(*flags("cnn", "sgd"))).chain
    trained = [sum(4 * each.numel() for each in block.named_parameters().values()) for block in chain.blocks]
    assert [block.parameter_bytes for block in profile.blocks] == trained
    assert sum(layers_of(profile, Rates(8.0, 8.0)).push_seconds) == sum(trained)
    assert profile.codec_family == "uniform"
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([], NO_OVERHEAD),
        ([(100.0, 0.5)], Linear(0.5, 0.0)),
        ([(100.0, 0.5), (100.0, 1.5)], Linear(1.0, 0.0)),
        ([(100.0, 0.5), (300.0, 1.5)], Linear(0.0, 0.005)),
        ([(100.0, 1.5), (300.0, 0.5)], Linear(1.0, 0.0)),
        ([(100.0, 0.0), (300.0, 1.0)], Linear(0.0, 0.003)),
    ],
)
def test_the_overhead_is_a_line_that_never_falls_and_never_begins_below_nothing(points, line):
    found = line_through(points)
    assert found == pytest.approx(line)


def test_what_every_other_repeat_waited_for_counts_as_encoding():
    held_up = [[size * 1e-9, size * 3e-9] * 2 for size in ENCODE_SIZES_BYTES]
    assert codec_line(held_up)["seconds_per_byte"] == pytest.approx(2e-9)
    mostly_quick = [[size * 1e-9] * 4 + [size * 6e-9] for size in ENCODE_SIZES_BYTES]
    assert codec_line(mostly_quick)["seconds_per_byte"] == pytest.approx(2e-9)


@pytest.mark.slow
async def test_a_profile_that_failed_says_why_and_measures_later_what_is_permitted_since(tmp_path, monkeypatch):
    async def measure_stage(*_):
        raise RefusedError("the cloud's blocks cannot be measured")

    async def close(*_, **__):
        raise UnreachableError("the trainer has ended")

    path = tmp_path / "profile.json"
    async with running_trainer("server.accept_inputs=true") as server:
        chosen = [*SEQUENCES, f"trainer.address={server.address}"]
        with monkeypatch.context() as broken:
            broken.setattr(TrainerClient, "measure_stage", measure_stage)
            broken.setattr(OpenSession, "close", close)
            with pytest.raises(RefusedError, match="cannot be measured"):
                await profile_pair(edge_config(*chosen), path, 2)
        profile = await profile_pair(edge_config(*chosen, PERMITTED), path, 2)
    assert np.isfinite(profile.workers[0].replayed[0, 1:]).all(), "cut 1 was skipped before"


async def test_cuts_that_would_part_a_weight_are_not_measured(tmp_path):
    tied = [
        'model.factory="tests.support.models.tied:TiedText"',
        "model.kwargs={layers=2, vocabulary=50}",
        'data.train={factory="tests.support.samples:Sequences"}',
    ]
    async with running_trainer("server.accept_inputs=true") as server:
        config = edge_config(*tied, f"trainer.address={server.address}", PERMITTED)
        profile = await profile_pair(config, tmp_path / "profile.json", 2)
    assert np.isfinite(profile.workers[0].replayed[0, 1:]).tolist() == [False, False, False, True]


@pytest.mark.slow
async def test_the_overhead_is_measured_where_something_learns(tmp_path):
    first, *_rest = Experiment(edge_config(*flags("cnn", "sgd"))).chain.blocks
    frozen = json.dumps(list(first.named_parameters()))
    profile, _ = await profiled(tmp_path / "profile.json", f"model.frozen={frozen}")
    # Either may come out as nothing where the machine was busy meanwhile.
    assert profile.workers[0].message != MessageSeconds()


@pytest.mark.slow
async def test_where_nothing_learns_on_the_edge_no_overhead_is_measured(tmp_path):
    *edge, _head = Experiment(edge_config(*flags("cnn", "sgd"))).chain.blocks
    frozen = json.dumps([name for block in edge for name in block.named_parameters()])
    profile, _ = await profiled(tmp_path / "profile.json", f"model.frozen={frozen}")
    assert profile.workers[0].message == MessageSeconds()
