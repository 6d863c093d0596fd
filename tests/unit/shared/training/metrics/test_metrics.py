"""The metrics of evaluations: what they compute, in one place or in several, and what they refuse."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.training.history import HistoryRow
from shared.errors import ModelError, NotAllowedError, ProtocolError
from shared.registry import METRICS, Labels, LossConfig, MetricConfig
from shared.registry.metrics import TAKEN
from shared.training.losses import LossHead
from shared.training.metrics import Judged, Metrics
from tests.support.models import metrics as own

CLASSES, LOSS = 7, "cross_entropy"
OWN = "tests.support.models.metrics"
OF_NUMBERS = {"mae", "r2"}
EACH = pytest.mark.parametrize("name", METRICS)


def metrics(*names, loss=LOSS, **keys):
    configs = tuple(each if isinstance(each, MetricConfig) else MetricConfig(name=each) for each in names)
    return Metrics(configs, LossConfig(name=loss).labels, None, **keys)


def drawn(name, samples=40):
    torch.manual_seed(samples)
    if name in OF_NUMBERS:
        labels = torch.randn(samples, 3)
        return labels + torch.randn(samples, 3), labels
    return torch.randn(samples, CLASSES), torch.randint(CLASSES, (samples,))


def loss_of(name):
    return "mse" if name in OF_NUMBERS else LOSS


def counted(of, batches):
    """The tally of all batches, as a loss brings them."""
    tally = of.tally(len(batches))
    head = LossHead(LossConfig(name=loss_of(of.names[0])), None)
    for output, labels in batches:
        head.evaluate((output,), labels, tally)
    return tally


def parted(output, labels, ends):
    ends = sorted({0, *ends, len(output)})
    return [(output[begin:end], labels[begin:end]) for begin, end in pairwise(ends)]


def test_no_metric_has_the_name_of_another_figure_of_a_run():
    assert set(HistoryRow._fields) <= TAKEN
    assert not TAKEN & METRICS.keys()


@EACH
@given(ends=st.lists(st.integers(1, 39), max_size=4), workers=st.integers(2, 3))
def test_the_value_is_that_of_all_samples_however_they_are_batched_and_divided(name, ends, workers):
    of, (output, labels) = metrics(name, loss=loss_of(name)), drawn(name)
    (whole,) = counted(of, [(output, labels)]).values()
    batches = parted(output, labels, ends)
    assert counted(of, batches).values() == pytest.approx([whole], rel=1e-6)
    tallies = [counted(of, batches[worker::workers]) for worker in range(workers)]
    assert of.merged([tally.states() for tally in tallies]) == pytest.approx([whole], rel=1e-6)


def test_named_metrics_are_what_their_names_say():
    scores = torch.tensor([[9.0, 5, 4, 3, 2, 1], [9, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 9], [9, 5, 4, 3, 2, 1]])
    labels, of = torch.tensor([0, 5, 5, 1]), metrics("top1", "top5", "f1", "perplexity")
    accuracy, top5, f1, perplexity = counted(of, [(scores, labels)]).values()
    assert (accuracy, top5) == (0.5, 0.75)
    assert f1 == pytest.approx((2 / 4 + 0 + 2 / 3) / 3), "of the classes 0, 1 and 5; no sample is of another"
    assert perplexity == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels).exp()))
    numbers, wanted = torch.tensor([[1.0], [2], [4]]), torch.tensor([[1.0], [3], [5]])
    mae, r2 = counted(metrics("mae", "r2", loss="mse"), [(numbers, wanted)]).values()
    assert mae == pytest.approx(2 / 3)
    assert r2 == pytest.approx(1 - 2 / 8)


def test_tokens_that_count_for_nothing_do_not_count_and_their_classes_are_last():
    output, labels = torch.randn(2, 5, 5), torch.randint(5, (2, 5))  # as many tokens as classes
    labels[0, :3] = -100
    of, tally = metrics("top1", loss="token_cross_entropy"), None
    tally = of.tally(1)
    LossHead(LossConfig(name="token_cross_entropy"), None).evaluate((output,), labels, tally)
    right = (output.argmax(-1) == labels)[labels != -100]
    assert tally.values() == [pytest.approx(float(right.float().mean()))]


def test_a_function_of_a_users_own_is_averaged_over_samples_with_its_arguments():
    output, labels = drawn("top1")
    config = MetricConfig(name=f"{OWN}:first_class", kwargs={"of": 3}, alias="threes")
    of = metrics(config)
    assert of.names == ("threes",)
    expected = float(own.first_class(output, labels, of=3))
    assert counted(of, parted(output, labels, [7, 30])).values() == [pytest.approx(expected)]


def test_a_class_of_a_users_own_merges_as_it_likes():
    output, labels = drawn("top1")
    of = metrics(MetricConfig(name=f"{OWN}:Spread", kwargs={"times": 2.0}))
    tallies = [counted(of, [part]) for part in parted(output, labels, [7, 30])]
    expected = 2 * float(output.max() - output.min())
    assert of.merged([tally.states() for tally in tallies]) == [pytest.approx(expected)]


def test_each_evaluation_counts_from_nothing():
    of, batch = metrics("top1", f"{OWN}:Spread"), drawn("top1")
    first = counted(of, [batch]).values()
    counted(of, [drawn("top1", 9)])
    assert counted(of, [batch]).values() == first


@pytest.mark.parametrize(
    ("name", "output", "labels", "loss", "sentence"),
    [
        (
            "top5",
            torch.rand(4, 3),
            torch.arange(3).repeat(2)[:4],
            LOSS,
            "'top5' takes the scores of five classes or more",
        ),
        (
            "f1",
            torch.rand(4, 3),
            torch.rand(4, 3),
            LOSS,
            "'f1' takes one output of scores and one tensor of class numbers",
        ),
        ("mae", torch.rand(4, 3), torch.zeros(4, dtype=torch.int64), LOSS, "'mae' takes one tensor of numbers"),
        (f"{OWN}:of_no_number", torch.rand(4, 3), torch.rand(4, 3), LOSS, r"no_number' gives a tensor \(3,\)"),
    ],
)
def test_what_the_labels_do_not_suit_is_said_with_the_metrics_name(name, output, labels, loss, sentence):
    tally = metrics(name).tally(1)
    with pytest.raises(ModelError, match=sentence):
        LossHead(LossConfig(name=loss), None).evaluate((output,), labels, tally)


def test_a_metric_that_raises_is_named():
    of, batch = metrics(f"{OWN}:Fails"), drawn("top1")
    with pytest.raises(ModelError, match=r"metric 'tests.*:Fails' failed with ValueError: two are too many"):
        counted(of, [batch, batch])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{OWN}:Nothing", "has no callable 'Nothing'"),
        (f"{OWN}:Unfinished", "is a class without state and merge and value"),
        ("not.there:f1", "cannot be imported"),
    ],
)
def test_what_is_no_metric_is_refused_before_it_is_used(name, sentence):
    with pytest.raises(ModelError, match=sentence):
        metrics(name)


def test_a_metric_that_is_not_allowed_is_refused():
    with pytest.raises(NotAllowedError, match="not allowed"):
        Metrics((MetricConfig(name=f"{OWN}:Spread"),), Labels.CLASSES, ["shared.model.zoo"])
    Metrics((MetricConfig(name=f"{OWN}:Spread"), MetricConfig(name="f1")), Labels.CLASSES, ["tests.support"])


def test_one_that_keeps_more_of_the_samples_than_is_given_is_ended():
    of = metrics(f"{OWN}:Spread", most_bytes=24)
    with pytest.raises(ModelError, match=r"would keep more than 24 bytes of samples \(server.max_tensor_bytes, and"):
        counted(of, [drawn("top1")] * 4)


def test_a_state_of_too_many_numbers_does_not_leave_its_worker():
    of = metrics("f1")
    tally = counted(of, [(torch.rand(2, 5000), torch.tensor([1, 2]))])
    assert tally.values()
    with pytest.raises(ModelError, match="'f1' has a state of 120000 bytes; at most 32768"):
        tally.states()


def test_a_state_that_is_no_dictionary_of_tensors_is_named():
    with pytest.raises(ModelError, match=r"Stateless' has a state that is no dictionary of tensors"):
        counted(metrics(f"{OWN}:Stateless", most_bytes=1000), [drawn("top1")])
    with pytest.raises(ModelError, match=r"Stateless' has a state that is no dictionary of tensors"):
        counted(metrics(f"{OWN}:Stateless"), [drawn("top1")]).states()


@pytest.mark.parametrize("states", [[[b""]], [[b"\xff" * 40]], [[]], [[b"", b""]]])
def test_what_is_no_state_is_refused(states):
    with pytest.raises(ProtocolError):
        metrics("top1").merged(states)


def test_states_that_do_not_fit_each_other_are_refused_by_name():
    several, fewer = (counted(metrics("f1"), [(torch.rand(4, size), torch.zeros(4).long())]) for size in (7, 5))
    with pytest.raises(ModelError, match="metric 'f1' failed with RuntimeError"):
        metrics("f1").merged([several.states(), fewer.states()])


@pytest.mark.parametrize(
    "told",
    [
        [Judged(3)],
        [Judged(3, values=(1.0, 2.0))],
        [Judged(3, states=(b"",))],
        [Judged(3, values=(1.0,)), Judged(3, values=(1.0,))],
    ],
)
def test_a_worker_that_tells_other_results_than_there_are_metrics_is_refused(told):
    with pytest.raises(ProtocolError):
        metrics("f1").of_all(told)
    assert metrics("f1").of_all([Judged(3, values=(1.0,))]) == {"f1": 1.0}
