"""Metrics beside those of torchmetrics: the named ones equal them, and any of theirs is computed as by itself."""

import pytest
import torch

from shared.errors import ModelError
from shared.registry import Labels, LossConfig, MetricConfig
from shared.training.losses import LossHead
from shared.training.metrics import Metrics
from tests.support.torchvisions import torchvision_imported

torchvision_imported()  # torchmetrics looks for it
torchmetrics = pytest.importorskip("torchmetrics")
CLASSES = 7
torch.manual_seed(3)
SCORES, LABELS = torch.randn(40, CLASSES), torch.randint(CLASSES - 1, (40,))
NUMBERS, WANTED = torch.randn(40, 3), torch.randn(40, 3)
ALL = {"num_classes": CLASSES}


def tally(config, loss, batches):
    of, head = Metrics((config,), LossConfig(name=loss).labels, None), LossHead(LossConfig(name=loss), None)
    counting = of.tally(len(batches))
    for output, labels in batches:
        head.evaluate((output,), labels, counting)
    return of, counting


def parts(output, labels):
    return [(output[begin:end], labels[begin:end]) for begin, end in ((0, 8), (8, 13), (13, 32), (32, 40))]


def theirs(metric, batches):
    for batch in batches:
        metric.update(*batch)
    return metric.compute().item()


def test_named_metrics_equal_theirs():
    of = torchmetrics.classification
    of_classes = {
        "top1": of.MulticlassAccuracy(CLASSES, average="micro"),
        "top5": of.MulticlassAccuracy(CLASSES, average="micro", top_k=5),
        "f1": of.MulticlassF1Score(CLASSES),
    }
    batches = parts(SCORES, LABELS)
    for name, metric in of_classes.items():
        _, ours = tally(MetricConfig(name=name), "cross_entropy", batches)
        assert ours.values() == [pytest.approx(theirs(metric, batches), rel=1e-6)], name
    of_numbers = {"mae": torchmetrics.MeanAbsoluteError(), "r2": torchmetrics.R2Score()}
    batches = parts(NUMBERS, WANTED)
    for name, metric in of_numbers.items():
        _, ours = tally(MetricConfig(name=name), "mse", batches)
        assert ours.values() == [pytest.approx(theirs(metric, batches), rel=1e-5)], name
    tokens, labels = torch.randn(4, 6, CLASSES), torch.randint(CLASSES, (4, 6))
    labels[0, 2:] = -100
    expected = theirs(torchmetrics.text.Perplexity(ignore_index=-100), [(tokens, labels)])
    _, ours = tally(MetricConfig(name="perplexity"), "token_cross_entropy", [(tokens, labels)])
    assert ours.values() == [pytest.approx(expected, rel=1e-6)]


REDUCTIONS = [
    ("torchmetrics.classification:MulticlassF1Score", ALL, "cross_entropy"),
    ("torchmetrics.classification:MulticlassAUROC", {**ALL, "thresholds": 20}, "cross_entropy"),
    ("torchmetrics.classification:MulticlassCalibrationError", {**ALL, "n_bins": 5}, "cross_entropy"),
    ("torchmetrics:MeanSquaredError", {"squared": False}, "mse"),
    ("torchmetrics:R2Score", {}, "mse"),
    ("torchmetrics:PearsonCorrCoef", {}, "mse"),
]


@pytest.mark.parametrize(("name", "kwargs", "loss"), REDUCTIONS, ids=[name for name, *_ in REDUCTIONS])
def test_any_of_theirs_is_what_it_is_by_itself_in_one_place_and_where_its_state_is_few_numbers_in_several(
    name, kwargs, loss
):
    batches = parts(SCORES, LABELS) if loss == "cross_entropy" else parts(NUMBERS, WANTED)
    if name.endswith("Coef"):
        batches = [(output[:, 0], labels[:, 0]) for output, labels in batches]
    module, _, kind = name.partition(":")
    expected = theirs(getattr(__import__(module, fromlist=[kind]), kind)(**kwargs), batches)
    config = MetricConfig(name=name, kwargs=kwargs)
    of, whole = tally(config, loss, batches)
    assert whole.values() == [pytest.approx(expected, rel=1e-6)]
    workers = [tally(config, loss, batches[place::2])[1] for place in range(2)]
    if "Calibration" in name:  # it keeps the confidence of every sample
        with pytest.raises(ModelError, match="keeps more than a few numbers of all samples"):
            workers[0].states()
        return
    assert of.merged([each.states() for each in workers]) == [pytest.approx(expected, rel=1e-5)]


def test_a_worker_that_had_no_sample_changes_nothing():
    config, batches = MetricConfig(name="torchmetrics:MeanSquaredError"), parts(NUMBERS, WANTED)
    of, whole = tally(config, "mse", batches)
    assert of.merged([whole.states(), of.tally(1).states()]) == [pytest.approx(whole.values()[0])]


def test_the_extremes_of_several_are_the_extremes():
    config = MetricConfig(name="tests.unit.shared.training.metrics.test_torchmetrics:Greatest")
    of, whole = tally(config, "mse", parts(NUMBERS, WANTED))
    workers = [tally(config, "mse", [part])[1] for part in parts(NUMBERS, WANTED)]
    assert of.merged([each.states() for each in workers]) == whole.values() == [NUMBERS.max().item()]


class Greatest(torchmetrics.Metric):
    """The greatest output, as a user writes it."""

    def __init__(self):
        super().__init__()
        self.add_state("greatest", torch.tensor(-torch.inf), dist_reduce_fx="max")

    def update(self, output, _labels):
        self.greatest = torch.maximum(self.greatest, output.max())

    def compute(self):
        return self.greatest


def test_one_that_holds_others_is_computed_in_one_place_alone():
    name = "torchmetrics.wrappers:MinMaxMetric"
    with pytest.raises(ModelError, match="MinMaxMetric' failed with"):
        Metrics((MetricConfig(name=name),), Labels.ALIKE, None)
    config = MetricConfig(name="tests.unit.shared.training.metrics.test_torchmetrics:running")
    with pytest.raises(ModelError, match="is an object that counts; name its class"):
        Metrics((config,), Labels.ALIKE, None)
    nested = MetricConfig(name="tests.unit.shared.training.metrics.test_torchmetrics:Nested")
    _, whole = tally(nested, "mse", [(NUMBERS, WANTED)])
    assert whole.values() == [pytest.approx((NUMBERS - WANTED).abs().mean().item())]
    with pytest.raises(ModelError, match="keeps more than a few numbers"):
        whole.states()


running = torchmetrics.MeanAbsoluteError()


class Nested(torchmetrics.Metric):
    """One around another."""

    def __init__(self):
        super().__init__()
        self.inner = torchmetrics.MeanAbsoluteError()

    def update(self, output, labels):
        self.inner.update(output, labels)

    def compute(self):
        return self.inner.compute()


def test_the_memory_of_all_samples_is_bounded():
    config = MetricConfig(name="torchmetrics.classification:MulticlassAUROC", kwargs=ALL)
    of, head = (
        Metrics((config,), Labels.CLASSES, None, most_bytes=2000),
        LossHead(LossConfig(name="cross_entropy"), None),
    )
    counting = of.tally(9)
    head.evaluate((SCORES,), LABELS, counting)
    with pytest.raises(ModelError, match="would keep more than 2000 bytes"):
        head.evaluate((SCORES,), LABELS, counting)
