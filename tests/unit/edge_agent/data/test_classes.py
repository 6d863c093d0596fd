"""Labels that are no class of the model: the sentence, whoever makes the batch, and the first step before which it comes."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.data import BatchLoader, Classes, EvaluationLoader, TensorDataset
from edge_agent.experiment.experiment import Experiment
from shared.errors import DataError
from tests.support.running import edge_config

COUNT = 3


@given(labels=st.lists(st.integers(-101, COUNT + 1), min_size=1, max_size=8), width=st.integers(1, 3))
def test_the_first_label_that_is_no_class_is_named_with_its_sample(labels, width):
    wrong = next((place for place, label in enumerate(labels) if label != -100 and not 0 <= label < COUNT), None)
    column = torch.tensor(labels)
    columns = column if width == 1 else torch.stack([torch.zeros_like(column)] * (width - 1) + [column], 1)
    indices = [10 + place for place in range(len(labels))]
    if wrong is None:
        Classes("data.train", COUNT).check(columns, indices)
        return
    says = f"the label of sample {10 + wrong} of data.train is {labels[wrong]}, and the model has 3 outputs, for classes of 0"
    with pytest.raises(DataError, match=re.escape(says)):
        Classes("data.train", COUNT).check(columns, indices)


def test_labels_with_fractions_are_no_classes():
    Classes("data.train", COUNT).check(torch.tensor([0.5, 7.0]), [0, 1])


class Late:
    """A data set of which the last sample alone has another label."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int):
        return torch.zeros(64), self.last if index == 39 else index % 10


@pytest.mark.parametrize("workers", [0, 1])
def test_a_later_label_is_refused_when_it_is_read(workers):
    for loader in (BatchLoader(Late(10), 8, 0, True, workers), EvaluationLoader(Late(10), 8, workers)):
        loader.expect(Classes("data.train", 10))
        with pytest.raises(DataError, match=r"sample 39 of data\.train is 10"):
            list(loader.iterate(0, 5) if isinstance(loader, BatchLoader) else loader.iterate())
        loader.close()


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_in_memory_are_all_looked_at_before_the_first_step(label):
    labels = torch.arange(40) % 10
    labels[39] = label
    with pytest.raises(DataError, match=rf"sample 39 of data\.test is {label}"):
        EvaluationLoader(TensorDataset(torch.zeros(40, 64), labels), 8).expect(Classes("data.test", 10))


def test_the_first_batches_are_looked_at_before_anything_is_dialled():
    here = "tests.unit.edge_agent.data.test_classes"
    model = ['model.factory="shared.model.zoo:mlp"', "data.batch_size=40"]
    for key, last in (("train", 10), ("test", 11)):
        other = {"train": "test", "test": "train"}[key]
        sets = [
            f'data.{name}={{factory="{here}:Late", kwargs={{last={value}}}}}'
            for name, value in ((key, last), (other, 9))
        ]
        with pytest.raises(DataError, match=rf"sample 39 of data\.{key} is {last}, and the model has 10 outputs"):
            Experiment(edge_config(*model, *sets))
