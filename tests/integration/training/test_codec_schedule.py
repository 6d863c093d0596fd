"""Codecs that follow a schedule or the learning rate: what is taken as one, and that every step has its own."""

import json
from dataclasses import replace

import pytest
import torch

from edge_agent.adaptation.engine_inputs import load_run_profile
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, StoppedError
from shared.execution.split import Scheme, split_placement, split_session
from shared.placement import Cargo
from tests.support.placement_kinds import running_trainers
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, edge_config, run_agent, running_trainer, train_with

EPOCH_STEPS = 1437 // 128
FLAGS = [
    "model.kwargs={width=4, blocks=2, dropout=0.2}",
    "data.batch_size=128",
    "deployment.cut=2",
    "training.epochs=4",
]
UP, DOWN = Cargo.FEATURE, Cargo.ERROR_GRADIENT
ADAPTIVE = 'deployment.codec="mbq-adaptive"'
MILESTONES = 'training.schedule={name="multistep", every="step", milestones=[4, 7, 9]}'


@pytest.mark.parametrize("key", ["codec", "downlink_codec"])
@pytest.mark.parametrize(
    "value",
    [
        "[]",
        '[[1, "mbq2"]]',
        '[[0, "mbq2"], [0, "mbq4"]]',
        '[[0, "mbq2"], [8, "mbq4"], [3, "mbq3"]]',
        '[[0, "mbq2"], [8, "mbq9"]]',
        '[[0, "mbq2"], [8]]',
        '[[0, "mbq-adaptive"]]',
        '["mbq2"]',
        "4",
    ],
)
def test_what_is_not_a_schedule_is_refused(key, value):
    with pytest.raises(ConfigError) as refusal:
        edge_config(f"deployment.{key}={value}")
    assert str(refusal.value).startswith(f"flag 'deployment.{key}={value}': deployment.{key}")
    assert "it must be one of raw, fp32" in str(refusal.value)
    assert "or a list of [from, codec] pairs that begins with 0" in str(refusal.value)


def test_error_gradients_do_not_follow_the_learning_rate_by_themselves():
    with pytest.raises(ConfigError, match=r"deployment\.downlink_codec is"):
        edge_config('deployment.downlink_codec="mbq-adaptive"', MILESTONES)


def test_what_schedules_count_in_belongs_to_a_schedule():
    with pytest.raises(ConfigError, match=r'codec_every is "step" but neither codec nor downlink_codec is a list'):
        edge_config("deployment.codec=mbq2", "deployment.codec_every=step")
    edge_config('deployment.downlink_codec=[[0, "fp32"], [5, "fp16"]]', "deployment.codec_every=step")


@pytest.mark.parametrize("schedule", ['{name="constant"}', '{name="cosine"}'])
def test_adaptive_codecs_without_milestones_are_one_sentence_and_the_code_of_a_wrong_configuration(schedule):
    flags = [ADAPTIVE, f"training.schedule={schedule}"]
    with pytest.raises(ConfigError, match=r"training\.schedule has no milestones, at which it would change"):
        edge_config(*flags)
    done = run_agent("run", *(f"--set={flag}" for flag in flags))
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("every", "unit"), [("step", 1), ("epoch", EPOCH_STEPS)])
def test_a_schedule_counts_in_steps_or_in_epochs(every, unit):
    codecs = ['deployment.codec=[[0, "mbq2"], [3, "mbq4"]]', 'deployment.downlink_codec=[[0, "fp32"], [2, "fp16"]]']
    experiment = Experiment(edge_config(*FLAGS, *codecs, f"deployment.codec_every={every}"))
    assert experiment.deployment.codec == "mbq2"
    assert experiment.codec_changes(UP) == {3 * unit: "mbq4"}
    assert experiment.codec_changes(DOWN) == {2 * unit: "fp16"}
    assert experiment.scheduled_steps == [2 * unit, 3 * unit]
    later = experiment.scheduled_at(2 * unit, replace(experiment.placement, staleness=5))
    assert {route.cargo: name for route, name in later.codecs.items()} == {UP: "mbq2", DOWN: "fp16"}
    assert later.staleness == 5, "K follows nothing"


@pytest.mark.parametrize(("every", "unit"), [("step", 1), ("epoch", EPOCH_STEPS)])
def test_adaptive_codecs_follow_the_milestones(every, unit):
    schedule = f'training.schedule={{name="multistep", every="{every}", milestones=[1, 2, 3]}}'
    experiment = Experiment(edge_config(*FLAGS, ADAPTIVE, schedule))
    assert (experiment.deployment.codec, experiment.deployment.downlink_codec) == ("mbq2", "uniform8-stochastic")
    assert experiment.codec_changes(UP) == {unit: "mbq3", 2 * unit: "mbq4"}
    assert experiment.codec_changes(DOWN) == {unit: "uniform4-stochastic"}


def test_a_codec_of_error_gradients_that_is_named_stays():
    experiment = Experiment(edge_config(*FLAGS, ADAPTIVE, MILESTONES, "deployment.downlink_codec=raw"))
    assert experiment.deployment.downlink_codec == "raw"
    assert experiment.codec_changes(DOWN) == {}


def test_a_codec_of_a_placements_file_and_a_schedule_exclude_each_other(tmp_path):
    path = tmp_path / "placement.json"
    document = {
        "schema": "isthmus.placement/v1",
        "workers": ["edge", "trainer"],
        "tiles": [{"worker": "edge", "blocks": [0, 2]}, {"worker": "trainer", "blocks": [2, 4]}],
        "codecs": [{"from": "edge", "to": "trainer", "cargo": "feature", "codec": "fp16"}],
    }
    path.write_text(json.dumps(document))
    chosen = [flag for flag in FLAGS if "cut" not in flag] + [f"placement.file={path}"]
    assert Experiment(edge_config(*chosen)).deployment.codec == "fp16"
    with pytest.raises(ConfigError, match="those of the configuration follow a schedule; leave one of them out"):
        Experiment(edge_config(*chosen, 'deployment.codec=[[0, "mbq2"], [3, "mbq4"]]'))


def test_an_engine_and_a_schedule_exclude_each_other(tmp_path):
    flags = [*FLAGS, f"engine.profile={tmp_path / 'none.json'}", 'deployment.codec=[[0, "mbq2"], [3, "mbq4"]]']
    with pytest.raises(ConfigError, match=r"which would both change the bits; set engine\.bits"):
        load_run_profile(Experiment(edge_config(*flags)))


def simulated(flags, stretches, cuts=(2,)):
    """The state of split training in one process, drained where the codecs change: (first step, stop step, scheme)."""
    experiment = Experiment(edge_config(*flags))
    chain = experiment.chain
    in_process = split_session(chain, cuts, experiment.recipe, stretches[0][2], torch.device("cpu"))
    for first, stop, scheme in stretches:
        in_process.change(split_placement(chain, cuts, scheme))
        batches = ((batch.inputs, batch.labels) for batch in experiment.loader.iterate(first, stop))
        in_process.train(first, stop, batches)
    return dict(chain.module.state_dict())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
async def test_every_step_has_the_codecs_of_its_schedule():
    flags = [
        *FLAGS,
        'deployment.codec=[[0, "mbq2"], [4, "mbq3"], [9, "mbq4"]]',
        'deployment.downlink_codec=[[0, "fp32"], [7, "uniform8"]]',
        "deployment.codec_every=step",
        "training.max_steps=12",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *flags)
    stretches = [
        (0, 4, Scheme(codec="mbq2")),
        (4, 7, Scheme(codec="mbq3")),
        (7, 9, Scheme(codec="mbq3", downlink_codec="uniform8")),
        (9, 12, Scheme(codec="mbq4", downlink_codec="uniform8")),
    ]
    real = dict(result.module.state_dict())
    assert_same_bits(real, simulated(flags, stretches))
    late = [(0, 5, stretches[0][2]), (5, 7, stretches[1][2]), *stretches[2:]]
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(real, simulated(flags, late))


@pytest.mark.usefixtures("one_thread")
async def test_adaptive_codecs_change_at_the_milestones_of_a_run():
    flags = [*FLAGS, ADAPTIVE, MILESTONES, "deployment.downlink_codec=fp16", "training.max_steps=10"]
    async with running_trainer() as server:
        result = await train_with(server, *flags)
    schemes = [Scheme(codec=codec, downlink_codec="fp16") for codec in ("mbq2", "mbq3", "mbq4")]
    stretches = [(0, 4, schemes[0]), (4, 7, schemes[1]), (7, 10, schemes[2])]
    assert_same_bits(dict(result.module.state_dict()), simulated(flags, stretches))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
async def test_a_chain_that_was_stopped_goes_on_with_the_codecs_of_its_steps_on_every_link(tmp_path):
    recipe = ["model.kwargs={width=4, blocks=2, dropout=0.2}", "data.batch_size=128", "training.max_steps=9"]
    async with running_trainers(tmp_path) as servers:
        named = ", ".join(f'{{name="{name}", address="{servers[name].address}"}}' for name in ("near", "far"))
        config = edge_config(
            *recipe,
            f"trainers=[{named}]",
            *("placement.edge=0:1", "placement.near=1:2", "placement.far=2:"),
            'deployment.codec=[[0, "mbq2"], [3, "mbq3"], [7, "mbq4"]]',
            'deployment.downlink_codec=[[0, "fp16"], [3, "uniform8"]]',
            "deployment.codec_every=step",
            f"checkpoints.location={tmp_path / 'edge'}",
        )
        shutdown = Shutdown()
        stopping = Listening(lambda progress: shutdown.drain() if progress.steps == 5 else None)
        with pytest.raises(StoppedError):
            await run_training(config, stopping, shutdown=shutdown)
        result = await run_training(config, resume=Resume())
    stretches = [
        (0, 3, Scheme(codec="mbq2", downlink_codec="fp16")),
        (3, 7, Scheme(codec="mbq3", downlink_codec="uniform8")),
        (7, 9, Scheme(codec="mbq4", downlink_codec="uniform8")),
    ]
    assert_same_bits(dict(result.module.state_dict()), simulated(recipe, stretches, cuts=(1, 2)))
