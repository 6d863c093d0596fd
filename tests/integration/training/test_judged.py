"""Metrics of the evaluations of whole runs: equal to those of the final model in one process, wherever the last block is."""

import asyncio
import json

import pytest
import torch

from edge_agent.data import evaluation_batches
from edge_agent.data.named import load_dataset
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.resuming import Resume
from edge_agent.training.events import Evaluated
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, ModelError, RefusedError, StoppedError
from shared.registry import Labels, MetricConfig
from shared.training.metrics import Metrics
from tests.support.experiments import flags
from tests.support.group_flags import SHARD, group_of, member
from tests.support.placement_kinds import (
    ACCEPTS_INPUTS,
    RANGES,
    SHARED,
    TRAINERS,
    addresses_of,
    flags_of,
    permitted,
    running_trainers,
)
from tests.support.running import Listening, edge_config, running_trainer, train_with
from tests.support.torchvisions import torchvision_imported

OWN = "tests.support.models.metrics"
ASKED = ["top5", "f1", {"name": f"{OWN}:first_class", "kwargs": {"of": 3}, "alias": "threes"}, f"{OWN}:Spread"]
SHOWN = ("top5", "f1", "threes", f"{OWN}:Spread")
LENGTH = ["training.max_steps=8", "data.batch_size=64", "training.epochs=3"]
pytestmark = pytest.mark.usefixtures("one_thread")


def as_toml(metrics):
    shown = [
        json.dumps(each)
        if isinstance(each, str)
        else f"{{ {', '.join(f'{key} = {as_value(value)}' for key, value in each.items())} }}"
        for each in metrics
    ]
    return f"training.metrics=[{', '.join(shown)}]"


def as_value(value):
    return json.dumps(value).replace(":", "=") if isinstance(value, dict) else json.dumps(value)


def in_one_process(config, module):
    """The metrics of all test samples, in one batch."""
    test = load_dataset(config.data.test.factory, config.data.test.kwargs)
    (batch,) = evaluation_batches(test, len(test))
    configs = tuple(MetricConfig(name=each) if isinstance(each, str) else MetricConfig(**each) for each in ASKED)
    tally = Metrics(configs, Labels.CLASSES, None).tally(1)
    with torch.no_grad():
        tally.update((module.eval()(*batch.features),), (batch.labels,))
    return dict(zip(SHOWN, tally.values(), strict=True))


async def one_run(*more):
    async with running_trainer() as server:
        evaluated = []
        config = edge_config(*flags("cnn", "adamw"), *LENGTH, f"trainer.address={server.address}", *more)
        result = await run_training(config, lambda events: events.subscribe(Evaluated, evaluated.append))
    return config, result, evaluated


async def test_they_are_those_of_the_final_model_in_one_process(tmp_path):
    config, result, evaluated = await one_run(as_toml(ASKED), f"output.directory={tmp_path}")
    assert result.summary.metrics == pytest.approx(in_one_process(config, result.module), rel=1e-5)
    assert result.summary.metrics["top5"] > 0.5
    assert evaluated[-1].metrics == result.summary.metrics
    assert tuple(evaluated[0].metrics) == SHOWN
    result.write(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"] == result.summary.metrics


async def test_with_none_asked_for_none_is_told():
    _, result, evaluated = await one_run()
    assert (result.summary.metrics, evaluated[-1].metrics) == ({}, {})


async def test_with_a_lossy_codec_those_of_the_saved_model_stand_beside():
    config, result, _ = await one_run(as_toml(ASKED), "deployment.codec=uniform4")
    expected = in_one_process(config, result.module)
    assert result.summary.saved_metrics == pytest.approx(expected, rel=1e-5)
    assert result.summary.metrics != pytest.approx(expected, rel=1e-5)


async def test_they_stand_in_the_history_and_tell_when_a_run_ends():
    ends = 'training.early_stop={metric="threes", mode="max", patience=2, min_delta=2.0}'
    _, result, evaluated = await one_run(as_toml(ASKED), ends, "training.evaluate_every_steps=2")
    assert result.summary.steps == 6, "the first is the best, and no share is better by two"
    rows = [row for row in result.history if row.metrics]
    assert [row.step for row in rows] == [2, 4, 6]
    assert [row.metrics for row in rows] == [event.metrics for event in evaluated]


async def test_a_run_that_is_stopped_goes_on_with_them_and_with_no_others(tmp_path):
    asked = [*flags("cnn", "adamw"), *LENGTH, "training.evaluate_every_steps=2"]
    shutdown = Shutdown()

    def on_progress(now):
        if now.steps == 5:
            shutdown.drain()

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        asked.append(f"trainer.address={server.address}")
        whole = await run_training(edge_config(*asked, as_toml(ASKED), "checkpoints.location=none"))
        kept = [*asked, f"checkpoints.location={tmp_path / 'edge'}"]
        with pytest.raises(StoppedError):
            await run_training(edge_config(*kept, as_toml(ASKED)), Listening(on_progress), shutdown=shutdown)
        with pytest.raises(ConfigError, match=r"training\.metrics is .* and was"):
            await run_training(edge_config(*kept, as_toml(["f1"])), resume=Resume())
        result = await run_training(edge_config(*kept, as_toml(ASKED)), resume=Resume())
    assert [row.metrics for row in result.history] == [row.metrics for row in whole.history]
    assert result.summary.metrics == whole.summary.metrics


async def test_each_member_of_a_group_has_those_of_its_own_test_set():
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, model="cnn", size=2, more=[SHARD, as_toml(ASKED)]) for rank in range(2)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    for config, result in zip(configs, results, strict=True):
        assert result.summary.metrics == pytest.approx(in_one_process(config, result.module), rel=1e-5)


@pytest.mark.parametrize(
    "kinds", [["owned by the device"], pytest.param([*RANGES, *SHARED], marks=pytest.mark.slow, id="all")]
)
async def test_they_are_those_of_the_final_model_at_every_kind_of_placement(tmp_path, kinds):
    async with running_trainers() as servers:
        for kind in kinds:
            placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "cnn")]
            config = edge_config(*flags("cnn", "adamw"), *LENGTH, *placed, as_toml(ASKED))
            evaluated = []
            result = await run_training(config, lambda events, seen=evaluated: events.subscribe(Evaluated, seen.append))
            expected = in_one_process(config, result.module)
            assert result.summary.metrics == pytest.approx(expected, rel=1e-5), kind
            assert result.summary.metrics["top5"] > 0.5
            assert evaluated[-1].metrics == result.summary.metrics
            assert tuple(evaluated[0].metrics) == SHOWN


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (["top7"], r"training\.metrics.*'top7' is no metric; it must be one of top1, top5"),
        ([{"name": "top5", "kwargs": {"k": 3}}], "top5 takes no kwargs"),
        (["top5", {"name": "f1", "alias": "top5"}], "two values of the name 'top5'; give one of them an alias"),
        ([{"name": "f1", "alias": "loss"}], "the alias 'loss', which is that of another figure"),
        ([{"name": "f1", "alias": "step_loss"}], "the alias 'step_loss', which is that of another figure"),
        ([{"name": "f1", "alias": "a b"}], "it must be 1 to 200 letters, digits, _, ., : and -"),
        (["f1"] * 17, "training.metrics"),
        ([{"alias": "f1"}], "training.metrics"),
    ],
)
def test_what_is_no_list_of_metrics_is_said_before_anything_is_read(metrics, sentence):
    with pytest.raises(ConfigError, match=sentence):
        edge_config(as_toml(metrics))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            as_toml(["f1"]),
            r"training\.metrics are computed of data\.test, which is left out; give it, or leave them out$",
        ),
        (
            "training.evaluate_every_steps=5",
            r"training\.evaluate_every_steps is set and data\.test is left out, so there is nothing to evaluate on;",
        ),
    ],
)
def test_without_a_test_set_there_is_nothing_to_evaluate_on(asked, sentence):
    alone = 'data.train={factory="edge_agent.data:digits", kwargs={split="train"}}'
    with pytest.raises(ConfigError, match=sentence):
        edge_config(asked, alone)
    edge_config(asked, alone, 'data.test={factory="edge_agent.data:digits", kwargs={split="test"}}')
    edge_config("training.evaluate_every_epochs=2", alone)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ("mae", "metric 'mae' takes one tensor of numbers and labels of its shape"),
        (f"{OWN}:Nothing", "has no callable 'Nothing'"),
        (f"{OWN}:Unfinished", "Unfinished' is a class without state and merge and value"),
        (f"{OWN}:of_no_number", "of_no_number' gives a tensor"),
        ({"name": f"{OWN}:first_class", "kwargs": {"off": 3}}, "unexpected keyword argument 'off'"),
    ],
)
def test_a_metric_that_the_labels_do_not_suit_is_said_before_any_trainer_is_dialled(metric, sentence):
    with pytest.raises(ModelError, match=sentence) as refused:
        Experiment(edge_config(*flags("cnn", "adamw"), as_toml([metric])))
    assert "\n" not in str(refused.value)


async def test_one_that_the_trainers_operator_has_not_allowed_is_refused():
    async with running_trainer('models.allowed=["shared.model.zoo"]') as server:
        with pytest.raises(RefusedError, match="first_class' is not allowed"):
            await train_with(server, *flags("cnn", "adamw"), *LENGTH, as_toml([f"{OWN}:first_class"]))
        await train_with(server, *flags("cnn", "adamw"), *LENGTH, as_toml(["f1"]))


@pytest.mark.parametrize("cut", [2, 4])
async def test_one_that_raises_in_the_middle_ends_the_run_with_its_name(cut):
    with pytest.raises((ModelError, RefusedError), match=r"metric '.*:Fails' failed with ValueError: two are too many"):
        await one_run(as_toml([f"{OWN}:Fails"]), f"deployment.cut={cut}", "data.batch_size=32")


async def test_one_that_keeps_all_samples_needs_one_judge(tmp_path):
    placed = flags_of("owned by the device", {"near": "127.0.0.1:9"}, tmp_path)
    permits = permitted("owned by the device", "cnn")
    with pytest.raises(
        ConfigError, match=r"edge and near would each compute.* has a state of \d+ bytes; at most 32768"
    ):
        Experiment(edge_config(*flags("cnn", "adamw"), *LENGTH, *placed, *permits, as_toml([f"{OWN}:Everything"])))


async def test_a_trainer_bounds_what_one_keeps():
    async with running_trainer("server.max_tensor_bytes=140_000") as server:
        with pytest.raises(RefusedError, match=r"Everything' would keep more than 140000 bytes of samples"):
            await train_with(server, *flags("cnn", "adamw"), *LENGTH, as_toml([f"{OWN}:Everything"]))


@pytest.mark.parametrize("kind", ["two workers", "owned by the device"])
async def test_those_of_torchmetrics_equal_them_in_one_process_where_the_trainer_allows_them(tmp_path, kind):
    torchvision_imported()  # torchmetrics looks for it
    metric = pytest.importorskip("torchmetrics.classification").MulticlassF1Score(num_classes=10, average="weighted")
    kwargs = {"num_classes": 10, "average": "weighted"}
    asked = {"name": "torchmetrics.classification:MulticlassF1Score", "kwargs": kwargs, "alias": "weighted"}
    async with running_trainer(ACCEPTS_INPUTS) as refusing:
        addresses = dict.fromkeys(TRAINERS, refusing.address)
        placed = [*flags_of(kind, addresses, tmp_path), *permitted(kind, "cnn"), as_toml([asked])]
        with pytest.raises(RefusedError, match="MulticlassF1Score' is not allowed"):
            await run_training(edge_config(*flags("cnn", "adamw"), *LENGTH, *placed))
    allowed = 'models.allowed=["shared.model.zoo", "torchmetrics"]'
    async with running_trainer(ACCEPTS_INPUTS, allowed) as allowing:
        addresses = dict.fromkeys(TRAINERS, allowing.address)
        placed = [*flags_of(kind, addresses, tmp_path), *permitted(kind, "cnn"), as_toml([asked])]
        config = edge_config(*flags("cnn", "adamw"), *LENGTH, *placed)
        result = await run_training(config)
    test = load_dataset(config.data.test.factory, config.data.test.kwargs)
    for batch in evaluation_batches(test, 100):
        with torch.no_grad():
            metric.update(result.module.eval()(*batch.features), batch.labels)
    assert result.summary.metrics == {"weighted": pytest.approx(float(metric.compute()), rel=1e-6)}
