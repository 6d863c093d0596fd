"""K that follows a schedule over epochs: what is taken as one, and that every epoch keeps to its own."""

import time

import pytest
from prometheus_client import CollectorRegistry

from edge_agent.experiment.experiment import Experiment
from edge_agent.training.events import Evaluated
from isthmus import run_training
from shared.errors import ConfigError, IsthmusError
from shared.events.worker import StepComputed
from shared.execution.blocks import PlacedBlocks
from tests.support.running import Listening, edge_config, running_trainer, train_with, trainer_config

LIMITS = [0, 3, 3, 1]
"""The limits K of the four epochs of SCHEDULE."""
SCHEDULE = "deployment.staleness=[[0, 0], [1, 3], [3, 1]]"
EPOCH_STEPS = 1437 // 128
FLAGS = [
    "model.kwargs={width=4, blocks=2}",
    "data.batch_size=128",
    "deployment.cut=2",
    f"training.epochs={len(LIMITS)}",
]
MUST = "an integer of 0 or more, or a list of [from, value] pairs that begins with 0"


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "[[1, 4]]",
        "[[0, 4], [0, 5]]",
        "[[0, 4], [8, 5], [3, 6]]",
        "[[0, 4], [8, -1]]",
        "[[0, 4], [8, 1.5]]",
        "[[0, 4], [8]]",
        "[[0, 4, 1]]",
        "[0, 4]",
        '"4"',
        "4.0",
        "{0=4}",
    ],
)
def test_what_is_not_a_schedule_is_refused(value):
    with pytest.raises(ConfigError) as refusal:
        edge_config(f"deployment.staleness={value}")
    assert str(refusal.value).startswith(f"flag 'deployment.staleness={value}': deployment.staleness")
    assert MUST in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("7", 7), ("[[0, 4]]", ((0, 4),)), ("[[0, 4], [8, 5]]", ((0, 4), (8, 5)))]
)
def test_what_is_a_schedule_is_taken(value, expected):
    assert edge_config(f"deployment.staleness={value}").deployment.staleness == expected


def test_the_trainers_own_limit_must_be_one():
    with pytest.raises(ConfigError, match=r"server.max_staleness is -1; it must be an integer of 0 or more"):
        trainer_config("server.max_staleness=-1")
    assert trainer_config("server.max_staleness=0").server.max_staleness == 0


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", ["3", "[[0, 3], [1, 0]]"])
async def test_an_edge_that_begins_with_more_than_the_trainer_allows_is_told_so(staleness):
    async with running_trainer("server.max_staleness=2") as server:
        with pytest.raises(IsthmusError, match=r"a staleness of 3 is more than .* limit of 2 \(server.max_staleness\)"):
            await train_with(server, *FLAGS, f"deployment.staleness={staleness}")
        result = await train_with(server, *FLAGS, "deployment.staleness=2", "training.max_steps=2")
        assert result.summary.steps == 2, "after the refusal the trainer serves on"


@pytest.mark.slow
async def test_an_edge_whose_schedule_comes_to_more_than_the_trainer_allows_is_told_so_before_it_trains():
    async with running_trainer("server.max_staleness=2") as server:
        with pytest.raises(
            ConfigError, match=r"deployment.staleness comes to 3; the limit of trainer 'trainer' is 2 \(server.max_stal"
        ):
            await train_with(server, *FLAGS, "deployment.staleness=[[0, 0], [1, 3]]")
        metric = server.metrics.registry.get_sample_value
        assert metric("isthmus_steps_total") == 0
        assert metric("isthmus_sessions") == 0, "nothing is left at the trainer"
        result = await train_with(server, *FLAGS, "deployment.staleness=[[0, 0], [1, 2]]", "training.max_steps=2")
        assert result.summary.steps == 2


def test_what_a_schedule_counts_in_belongs_to_a_schedule():
    with pytest.raises(ConfigError, match=r'staleness_every is "step" but staleness is 3, which never changes'):
        edge_config("deployment.staleness=3", "deployment.staleness_every=step")
    with pytest.raises(ConfigError, match=r"deployment.staleness_every is \"batch\"; it must be"):
        edge_config("deployment.staleness=[[0, 3]]", "deployment.staleness_every=batch")


@pytest.mark.parametrize(
    ("every", "changes"), [("step", {7: 3, 9: 1}), ("epoch", {7 * EPOCH_STEPS: 3, 9 * EPOCH_STEPS: 1})]
)
def test_a_schedule_counts_in_steps_or_in_epochs(every, changes):
    flags = [*FLAGS, "deployment.staleness=[[0, 2], [7, 3], [9, 1]]", f"deployment.staleness_every={every}"]
    experiment = Experiment(edge_config(*flags))
    assert experiment.deployment.staleness == 2
    assert experiment.staleness_changes == changes


@pytest.fixture
def unhurried(monkeypatch):
    """A trainer whose steps take their time, so that the next batch has always begun before a gradient comes."""
    compute = PlacedBlocks.loss

    def slowly(*arguments):
        time.sleep(0.05)
        return compute(*arguments)

    monkeypatch.setattr(PlacedBlocks, "loss", slowly)


@pytest.mark.usefixtures("unhurried")
async def test_k_follows_a_schedule_over_steps():
    """Every step keeps to its K, in the middle of an epoch."""
    limits, applied = {0: 0, 4: 3, 8: 1}, {}

    def note(event):
        applied[event.step] = event.staleness

    schedule = "deployment.staleness=[[0, 0], [4, 3], [8, 1]]"
    async with running_trainer() as server:
        flags = [*FLAGS, schedule, "deployment.staleness_every=step", "training.max_steps=11"]
        config = edge_config(*flags, f"trainer.address={server.address}")
        result = await run_training(config, Listening(others={StepComputed: note}))
    assert result.summary.steps == 11
    assert sorted(applied) == list(range(11))
    for step, late in applied.items():
        assert late <= limits[max(start for start in limits if start <= step + late)]
    assert max(applied[step] for step in range(4, 8)) >= 1, "and more than 0 is used where it may be"


class StalenessPerEpoch:
    """Looks at the metric whenever an epoch's evaluation is done."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counts: list[dict[str, float]] = []

    def look(self) -> None:
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        found = {s.labels["le"]: s.value for s in samples if s.name == "isthmus_staleness_steps_bucket"}
        self.counts.append(found)

    def of_epoch(self, epoch: int, bound: str) -> float:
        """Return the number of gradients of an epoch that were at most so late."""
        before = self.counts[epoch - 1][bound] if epoch else 0.0
        return self.counts[epoch][bound] - before


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "unhurried")
async def test_the_staleness_of_every_epoch_keeps_to_the_schedule(monkeypatch):
    seen = StalenessPerEpoch()
    monkeypatch.setattr("edge_agent.run.CollectorRegistry", lambda: seen.registry)
    async with running_trainer() as server:
        config = edge_config(*FLAGS, SCHEDULE, f"trainer.address={server.address}")
        result = await run_training(config, Listening(others={Evaluated: lambda _event: seen.look()}))
    assert result.summary.steps == len(LIMITS) * EPOCH_STEPS
    for epoch, limit in enumerate(LIMITS):
        assert seen.of_epoch(epoch, "+Inf") == EPOCH_STEPS, "every gradient is in the metric, once"
        assert seen.of_epoch(epoch, f"{limit:.1f}") == EPOCH_STEPS, "none was later than allowed"
        if limit:
            # The last batches of an epoch have fewer and fewer behind them; the first must not wait.
            assert seen.of_epoch(epoch, "0.0") < EPOCH_STEPS
