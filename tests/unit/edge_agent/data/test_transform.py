"""A function of the user's own that changes whole batches."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edge_agent.data import BatchLoader, TensorDataset
from edge_agent.data.transform import BatchTransform
from shared.errors import DataError
from shared.model.random_state import derive_seed

torch.set_num_threads(1)

COUNT, SEED = 12, 7
SAMPLES = TensorDataset(torch.rand(COUNT, 3), torch.arange(COUNT))


def noisy(inputs, labels):
    noise = torch.rand(inputs.shape) + random.random() + np.random.rand()
    return inputs + noise.float(), (labels, labels.float() / 2)


def loader(monkeypatch, function, workers=0):
    monkeypatch.setitem(sys.modules, "given_transforms", SimpleNamespace(function=function))
    return BatchLoader(SAMPLES, 5, SEED, False, workers, transform=BatchTransform("given_transforms:function"))


def test_each_batch_is_changed_with_the_random_numbers_of_its_step(monkeypatch):
    plain = list(BatchLoader(SAMPLES, 5, SEED, False, 0).iterate(0, 6))
    for batch, before in zip(loader(monkeypatch, noisy).iterate(0, 6), plain, strict=True):
        seed = derive_seed(SEED, "samples", batch.step)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        inputs, labels = noisy(before.inputs, before.labels)
        assert torch.equal(batch.inputs, inputs)
        assert all(map(torch.equal, batch.labels, labels))


def test_a_run_that_goes_on_at_any_step_gets_the_same(monkeypatch):
    whole = list(loader(monkeypatch, noisy).iterate(0, 9))
    for batch in loader(monkeypatch, noisy).iterate(4, 9):
        assert torch.equal(batch.inputs, whole[batch.step].inputs)


@pytest.mark.slow
def test_worker_processes_change_them_the_same():
    def inputs(workers):
        transform = BatchTransform("tests.unit.edge_agent.data.test_transform:noisy")
        return [
            batch.inputs for batch in BatchLoader(SAMPLES, 5, SEED, False, workers, transform=transform).iterate(0, 5)
        ]

    assert all(map(torch.equal, inputs(0), inputs(2)))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda inputs, _: inputs, "returned a value of type Tensor; it must return a pair of inputs and labels"),
        (lambda inputs, labels: (inputs[:, :2], labels), "returned inputs of another type or shape than it was given"),
        (lambda inputs, labels: (inputs.double(), labels), "returned inputs of another type or shape than it was given"),
        (lambda _, labels: (None, labels), "returned inputs of another type or shape than it was given"),
        (lambda inputs, labels: (inputs, labels[1:]), "returned labels that are no tensors of 5 samples"),
        (lambda inputs, _: (inputs, 3), "returned labels that are no tensors of 5 samples"),
        (lambda _: None, "failed with TypeError: "),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_one_sentence(monkeypatch, function, says):
    with pytest.raises(DataError, match=f"^data.batch_transform: 'given_transforms:function' {says}"):
        list(loader(monkeypatch, function).iterate(0, 1))


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(
        DataError, match=r"^data.batch_transform: factory 'tests:none': module 'tests' has no callable 'none'$"
    ):
        BatchTransform("tests:none")
