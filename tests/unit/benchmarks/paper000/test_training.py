"""One training of a task: what it measures beside the accuracy."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from benchmarks.paper000.figures import FIGURES
from benchmarks.paper000.tasks import TASKS
from benchmarks.paper000.training import (
    DEVIATIONS,
    LATENESS,
    QUANTILES,
    Training,
    WeightChanges,
    area_under_curve,
    run_training,
)
from edge_agent.data import Batch


def moved(steps: int) -> WeightChanges:
    """Weights that grow by a hundredth a step, seen before each of so many steps."""
    module = nn.Linear(2, 1, bias=False)
    changes = WeightChanges(module, steps, 1)
    nothing = torch.zeros(1)
    for step, _ in enumerate(changes.watched(Batch(step, nothing, nothing) for step in range(steps))):
        nn.init.constant_(module.weight, 1 + (step + 1) / 100)
        with torch.no_grad():
            module.weight[0, 1] = -module.weight[0, 1]
    return changes


def test_a_change_of_the_norm_is_relative_to_what_it_was():
    rates = moved(20).rates()
    assert len(rates) == len(LATENESS)
    assert [len(each) for each in rates] == [len(QUANTILES)] * len(LATENESS)
    for late, (median, *_) in zip(LATENESS, rates, strict=True):
        assert 100 * late * 0.01 / 1.19 < median < 100 * late * 0.01


def test_a_deviation_is_that_of_the_differences_of_all_weights():
    for by_late in moved(20).deviations():
        for late, found in zip(DEVIATIONS, by_late, strict=True):
            assert found == pytest.approx(torch.tensor([late / 100, -late / 100]).std().item(), rel=1e-4)


def test_the_area_under_the_curve_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(10, (200,), generator=generator) / 10  # with many ties
    labels = torch.randint(2, (200,), generator=generator)
    assert area_under_curve(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    assert torch.tensor(area_under_curve(scores, torch.ones(200))).isnan()


def test_serial_training_ends_as_the_device_alone(folder):
    alone = Training("chair", "small", 1, 320, 0)
    serial = Training("chair", "small", 1, 320, 0, cut=2)
    late = Training("chair", "small", 1, 320, 0, cut=2, staleness=((0, 5),))
    first, same, other = (run_training(one, folder, torch.device("cpu")) for one in (alone, serial, late))
    assert first.curve == same.curve != other.curve
    assert first.rates
    assert same.rates is None


def test_the_k_of_the_paper_keeps_its_share_of_the_epochs():
    assert TASKS["bilstm"].staleness_of(10) == ((0, 4), (8, 5))
    assert TASKS["bilstm"].staleness_of(5) == ((0, 4), (4, 5))
    assert TASKS["type2_tiny"].staleness_of(5) == ((0, 5), (3, 6))
    assert TASKS["resnet50"].recipe("paper", 0, 160, 10).schedule.milestones == (80, 120)
    assert TASKS["mobilenetv3"].recipe("paper", 0, 2, 10).schedule.milestones == (1, 2, 3)


def test_the_rate_rises_in_the_first_epochs_of_a_size_that_asks_for_it_and_never_in_the_papers():
    warmed = [name for name, task in TASKS.items() if task.sizes["small"].warmup_epochs]
    assert {"vgg19", "din"} <= {*warmed}
    for name in warmed:
        assert TASKS[name].recipe("small", 0, 5, 7).schedule.warmup_steps == 7
        assert TASKS[name].recipe("paper", 0, 5, 7).schedule.warmup_steps == 0


def test_predicted_weights_stand_beside_those_that_are_there_where_the_optimizer_has_a_momentum():
    for name, rows in ((name, FIGURES["table4"].rows(Training(name, "small", 1, 320, 0))) for name in TASKS):
        predicted = [row for row in rows if row.training.correction == "prediction"]
        assert len(predicted) == (len(rows) > 3) == ("probe" not in name)
        for row in predicted:
            assert replace(row.training, correction="none") == rows[2].training
            TASKS[name].recipe("small", 0, 1, 10, "prediction")
