"""K that follows a schedule over epochs: what is taken as one, and that every epoch keeps to its own."""

import pytest
import torch
from prometheus_client import CollectorRegistry

from edge_agent.observer import RunObserver
from shared.errors import ConfigError, IsthmusError
from tests.support.running import edge_config, running_trainer, train_with, trainer_config

LIMITS = [0, 3, 3, 1]
"""Of the four epochs of SCHEDULE."""
SCHEDULE = "deployment.staleness=[[0, 0], [1, 3], [3, 1]]"
EPOCH_STEPS = 1437 // 128
FLAGS = [
    "model.kwargs={width=4, blocks=2}",
    "data.batch_size=128",
    "deployment.cut=2",
    f"training.epochs={len(LIMITS)}",
]
MUST = "an integer of 0 or more, or a list of [from_epoch, value] pairs that begins with epoch 0"


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


@pytest.mark.parametrize("staleness", ["3", "[[0, 3], [1, 0]]"])
async def test_an_edge_that_begins_with_more_than_the_trainer_allows_is_told_so(staleness):
    async with running_trainer("server.max_staleness=2") as server:
        with pytest.raises(IsthmusError, match=r"a staleness of 3 is more than .* limit of 2 \(server.max_staleness\)"):
            await train_with(server, *FLAGS, f"deployment.staleness={staleness}")
        result = await train_with(server, *FLAGS, "deployment.staleness=2", "training.max_steps=2")
        assert result.summary.steps == 2, "after the refusal the trainer serves on"


async def test_an_edge_whose_schedule_comes_to_more_than_the_trainer_allows_is_refused():
    async with running_trainer("server.max_staleness=2") as server:
        with pytest.raises(IsthmusError):
            await train_with(server, *FLAGS, "deployment.staleness=[[0, 0], [1, 3]]")
        refused = server.metrics.registry.get_sample_value("isthmus_errors_total", {"code": "INVALID_ARGUMENT"})
        assert refused == 1


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
        """How many gradients of an epoch were at most so late."""
        before = self.counts[epoch - 1][bound] if epoch else 0.0
        return self.counts[epoch][bound] - before


async def test_the_staleness_of_every_epoch_keeps_to_the_schedule(monkeypatch):
    torch.set_num_threads(1)
    seen = StalenessPerEpoch()
    monkeypatch.setattr("edge_agent.run.CollectorRegistry", lambda: seen.registry)
    monkeypatch.setattr(RunObserver, "evaluated", lambda _self, _accuracy: seen.look())
    async with running_trainer() as server:
        result = await train_with(server, *FLAGS, SCHEDULE)
    assert result.summary.steps == len(LIMITS) * EPOCH_STEPS
    for epoch, limit in enumerate(LIMITS):
        assert seen.of_epoch(epoch, "+Inf") == EPOCH_STEPS, "every gradient is in the metric, once"
        assert seen.of_epoch(epoch, f"{limit:.1f}") == EPOCH_STEPS, "none was later than allowed"
        if limit:
            # The last batches of an epoch have fewer and fewer behind them; the first must wait for nobody.
            assert seen.of_epoch(epoch, "0.0") < EPOCH_STEPS
