"""Samples: what a data set may give, the batch that it becomes, and the sentence for what it may not."""

import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch.utils.data import TensorDataset as TorchTensorDataset
from torch.utils.data import default_collate

from edge_agent.data import BatchLoader, Collate, TensorDataset, evaluation_batches, first_batch
from edge_agent.data.samples import BatchRequest, SampleReader
from shared.errors import DataError
from shared.model.inputs import features_of_inputs
from shared.training.losses import label_tensors
from tests.support.samples import Counting, FlatDigits, Masked, OtherKeys, Purchases

torch.set_num_threads(1)


class Answering:
    """A data set whose sample 3 is a given answer and whose other samples are numbers."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int):
        if index != 3:
            return torch.zeros(2), index
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            ZeroDivisionError("on\npurpose"),
            "sample 3 of Answering cannot be read: ZeroDivisionError: on purpose",
        ),
        (7, "sample 3 of Answering is of type int; it must be a pair of input and label"),
        (
            (torch.zeros(2), 1, 2),
            "sample 3 of Answering is of type tuple of 3; it must be a pair of input and label",
        ),
        (
            ("text", 1),
            "the input of sample 3 of Answering is of type str; it must be a tensor or an array",
        ),
        (
            (torch.zeros(2), "cat"),
            "the label of sample 3 of Answering is of type str; it must be a number, a tensor or an array",
        ),
        (
            (torch.zeros(3), 1),
            "the input of sample 3 of Answering is float32 of shape (3,), that of sample 0 float32 of shape (2,); "
            "those of one batch must be alike",
        ),
        (
            (torch.zeros(2, dtype=torch.float64), 1),
            "the input of sample 3 of Answering is float64 of shape (2,), that of sample 0 float32 of shape (2,); "
            "those of one batch must be alike",
        ),
        (
            (torch.zeros(2), torch.zeros(2).long()),
            "the label of sample 3 of Answering is int64 of shape (2,), that of sample 0 int64 of shape (); "
            "those of one batch must be alike",
        ),
    ],
)
def test_a_sample_that_cannot_be_used_is_named(answer, sentence: str):
    with pytest.raises(DataError) as caught:
        list(evaluation_batches(Answering(answer), 5))
    assert str(caught.value) == sentence


def test_an_array_that_torch_cannot_hold_is_named():
    with pytest.raises(DataError, match="sample 3 of Answering holds an array that torch has no type for"):
        list(evaluation_batches(Answering((np.array(["a"]), 1)), 5))


@pytest.mark.full
def test_a_sample_that_cannot_be_read_in_a_worker_is_named_the_same():
    with pytest.raises(DataError) as caught:
        list(evaluation_batches(Answering(ZeroDivisionError("there")), 5, workers=1))
    assert str(caught.value) == "sample 3 of Answering cannot be read: ZeroDivisionError: there"


@pytest.mark.parametrize(
    "label", [np.int32(2), np.uint8(2), torch.tensor(2, dtype=torch.uint8), np.array(2, dtype=np.int16), True]
)
def test_integer_labels_of_any_kind_become_int64(label):
    (batch,) = evaluation_batches([(np.zeros(2, np.float32), label)], 1)
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [int(label)]
    assert batch.inputs.dtype == torch.float32


def test_labels_that_are_numbers_with_a_fraction_stay_so():
    (batch,) = evaluation_batches([(torch.zeros(2), torch.tensor([0.5]))], 1)
    assert batch.labels.tolist() == [[0.5]]


@pytest.mark.parametrize("label", [0.7, np.float32(0.7), np.float64(0.7)])
def test_a_number_with_a_fraction_is_a_label(label):
    (batch,) = evaluation_batches([(torch.zeros(2), label), (torch.zeros(2), 0.2)], 2)
    assert torch.equal(batch.labels, torch.tensor([0.7, 0.2]))


@pytest.mark.parametrize("labels", [torch.tensor([0.7, -1.5]), torch.tensor([[0.7, 1.0], [2.0, -1.5]])])
def test_labels_of_a_dataset_in_memory_keep_their_fractions(labels):
    (batch,) = evaluation_batches(TensorDataset(torch.zeros(2, 3), labels), 2)
    assert torch.equal(batch.labels, labels)


def marked(numbers):
    return [(torch.zeros(2), (number, torch.full((3,), float(number)))) for number in numbers]


def test_labels_of_several_tensors_are_stacked_each():
    (batch,) = evaluation_batches(marked([2, 5]), 2)
    kinds, shares = batch.labels
    assert torch.equal(kinds, torch.tensor([2, 5]))
    assert torch.equal(shares, torch.tensor([[2.0] * 3, [5.0] * 3]))
    assert batch.samples == 2


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (
            3,
            r"the label of sample 1 of list has one tensor, that of sample 0 the parts 0, 1; those of one batch must be alike",
        ),
        (
            (1, torch.zeros(3), 2),
            r"the label of sample 1 of list has the parts 0, 1, 2, that of sample 0 the parts 0, 1",
        ),
        ((1, torch.zeros(4)), r"the label 1 of sample 1 of list is float32 of shape \(4,\), that of sample 0"),
        ((1, "cat"), r"the label 1 of sample 1 of list is of type str; it must be a number, a tensor or an array"),
        ((), r"the label of sample 1 of list is of type tuple of 0; it must be a number"),
    ],
)
def test_labels_of_several_tensors_that_differ_are_refused(label, says):
    with pytest.raises(DataError, match=says):
        list(evaluation_batches([*marked([2]), (torch.zeros(2), label)], 2))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_inputs_by_name_and_by_place_are_stacked_each(workers):
    for dataset, parts in ((Masked(8, 5), {"input_ids", "attention_mask"}), (Purchases(8, 5), {0, 1})):
        with closing(BatchLoader(dataset, 4, 0, drop_last=True, workers=workers)) as loader:
            (batch,) = loader.iterate(0, 1)
        inputs = batch.inputs if isinstance(batch.inputs, dict) else dict(enumerate(batch.inputs))
        assert inputs.keys() == parts
        assert [len(tensor) for tensor in batch.features] == [4, 4]
        rows = [
            int(torch.eq(batch.features[1], dataset_features(dataset, index)[1]).flatten(1).all(1).any())
            for index in range(8)
        ]
        assert sum(rows) >= 4


def dataset_features(dataset, index):
    inputs, _ = dataset[index]
    return tuple(
        torch.as_tensor(each)
        for each in ([inputs[key] for key in sorted(inputs)] if isinstance(inputs, dict) else inputs)
    )


def test_a_sample_with_other_keys_is_named():
    with pytest.raises(
        DataError,
        match="input of sample 3 of OtherKeys has the parts attention_mask, input_ids, mask, that of sample 0",
    ):
        list(evaluation_batches(OtherKeys(8, 5), 4))


class Drawing:
    """Samples from numpy's generator. Before the first is drawn, it does what it was told."""

    def __init__(self, before):
        self.before = before

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.before()
        return torch.tensor(np.random.rand()), index


def test_readers_in_several_threads_draw_as_each_alone_and_give_numpy_its_generator_back():
    request, own = BatchRequest([0, 1], ("seed",)), np.random.mtrand.get_bit_generator()
    (alone,) = SampleReader(Drawing(lambda: None), 0).read([request])
    beside = []

    def read_beside():
        beside.extend(SampleReader(Drawing(lambda: None), 0).read([request]))

    def begin():
        if not threads:
            threads.append(threading.Thread(target=read_beside))
            threads[0].start()
            threads[0].join(0.2)  # room for the other one to come in between; nothing depends on how much

    threads = []
    (first,) = SampleReader(Drawing(begin), 0).read([request])
    threads[0].join()
    assert first[0].tolist() == alone[0].tolist()
    assert beside[0][0].tolist() == alone[0].tolist()
    assert np.random.mtrand.get_bit_generator() is own


@pytest.mark.parametrize(("kind", "warns"), [(Counting, True), (FlatDigits, False)])
def test_samples_that_change_when_they_are_read_again_are_warned_of(kind, warns):
    with capture_logs() as logs:
        first_batch(kind(), 8)
    assert ["sample 0 is another one when it is read again" in line["event"] for line in logs] == [True] * warns


class Graphed:
    """A data set whose samples come with the graph that made them."""

    def __init__(self, make) -> None:
        self.scale = torch.tensor(2.0, requires_grad=True)
        self.make = make

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        return self.make(torch.arange(3.0) + index, self.scale)


@pytest.mark.parametrize(
    "dataset",
    [
        Graphed(lambda value, _scale: (value.requires_grad_(), 1)),
        Graphed(lambda value, scale: (value * scale, value.sum() * scale)),
        Graphed(lambda value, scale: ({"one": value * scale, "other": value}, 1)),
        Graphed(lambda value, scale: ((value, value * scale), (1, scale * 3))),
        TorchTensorDataset(torch.rand(6, 3, requires_grad=True), torch.rand(6, requires_grad=True)),
        TensorDataset(torch.rand(6, 3, requires_grad=True), torch.rand(6, requires_grad=True)),
    ],
    ids=["a leaf", "computed", "by name", "several", "torch's", "ours"],
)
@pytest.mark.parametrize("collate", [None, "tests.unit.edge_agent.data.test_samples:as_torch_does"])
def test_samples_come_without_the_graph_that_made_them(dataset, collate):
    collate = collate and Collate(collate)
    (inputs, labels), *_ = SampleReader(dataset, 0, collate).read([BatchRequest([0, 4, 2], (0,))])
    expected, targets = as_torch_does([dataset[index] for index in (0, 4, 2)])
    ours = *features_of_inputs(inputs), *label_tensors(labels)
    plain = *features_of_inputs(expected), *label_tensors(targets)
    for found, wanted in zip(ours, plain, strict=True):
        assert not found.requires_grad
        assert torch.equal(found, wanted.detach())


def as_torch_does(items):
    return tuple(tuple(part) if isinstance(part, list) else part for part in default_collate(items))
