"""Batches of a dataset that is only iterated."""

import random
from contextlib import closing

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from edge_agent.data import BatchLoader, evaluation_batches, first_batch
from edge_agent.data.stream import is_iterated
from shared.errors import DataError
from shared.model.random_state import derive_seed

torch.set_num_threads(1)

SEED, SIZE, STEPS = 3, 4, 5  # of 20 samples in an epoch


class Noisy(IterableDataset[tuple[Tensor, int]]):
    """Numbers in an order that is drawn, with noise."""

    def __init__(self, count: int = 30) -> None:
        self.count = count

    def __iter__(self):
        for number in torch.randperm(self.count).tolist():
            yield torch.tensor([random.random(), torch.rand(()).item()]), number


class InEpochs(Noisy):
    """An order of the epoch alone, as of a set of Hugging Face."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        for number in order:
            yield torch.tensor([float(number)]), number


class Breaking(Noisy):
    def __iter__(self):
        yield from ((torch.zeros(1), number) for number in range(9))
        raise OSError("the line is cut")


class Once:
    """Goes on where it was left."""

    def __init__(self):
        self.numbers = iter(range(99))

    def __iter__(self):
        return ((torch.tensor([float(number)]), number) for number in self.numbers)


def loader(dataset, workers=0, **keys):
    return BatchLoader(dataset, SIZE, SEED, True, workers, steps_per_epoch=STEPS, **keys)


def plain(dataset, steps):
    """The loop of the page: a batch after the other, each with its own seed."""
    for step in range(steps):
        torch.manual_seed(seed := derive_seed(SEED, "samples", step))
        random.seed(seed)
        if step % STEPS == 0:
            getattr(dataset, "set_epoch", lambda _: None)(step // STEPS)
            iterator = iter(dataset)
        samples = []
        while len(samples) < SIZE:
            try:
                samples.append(next(iterator))
            except StopIteration:
                iterator = iter(dataset)
        yield torch.stack([value for value, _ in samples]), [label for _, label in samples]


@pytest.mark.parametrize("dataset", [Noisy(), Noisy(20), Noisy(7), Noisy(1), InEpochs(), InEpochs(13)])
def test_the_batches_are_those_of_a_plain_loop_wherever_reading_begins(dataset):
    expected = list(plain(dataset, 13))
    read = loader(dataset)
    for start, stop in ((0, 13), (0, 3), (3, 8), (7, 9), (8, 13), (4, 5), (12, 13)):
        for batch in read.iterate(start, stop):
            inputs, labels = expected[batch.step]
            assert torch.equal(batch.inputs, inputs)
            assert batch.labels.tolist() == labels


@pytest.mark.slow
def test_a_worker_process_gives_the_same():
    expected = list(plain(Noisy(), 13))
    with closing(loader(Noisy(), workers=1)) as read:
        for start, stop in ((0, 6), (4, 9), (9, 13)):
            assert [batch.labels.tolist() for batch in read.iterate(start, stop)] == [
                labels for _, labels in expected[start:stop]
            ]


def test_an_epoch_has_the_steps_that_it_is_told():
    read = loader(Noisy())
    assert (read.steps_per_epoch, read.samples) == (STEPS, STEPS * SIZE)


def test_an_epoch_may_be_longer_than_memory():
    endless = BatchLoader(Noisy(), SIZE, SEED, True, 0, steps_per_epoch=10**12)
    assert [len(batch.labels) for batch in endless.iterate(0, 2)] == [SIZE, SIZE]


def test_only_what_begins_again_is_iterated():
    assert is_iterated(Noisy())
    assert is_iterated({1, 2})
    assert not any(map(is_iterated, ([1], (number for number in [1]), iter([1]))))


def test_what_cannot_be_read_is_one_sentence():
    with pytest.raises(DataError, match=r"^sample 9 of an epoch of Breaking cannot be read: OSError: the line is cut$"):
        list(loader(Breaking()).iterate(0, 3))
    with pytest.raises(DataError, match=r"^Noisy gives no samples$"):
        list(loader(Noisy(0)).iterate(0, 1))
    with pytest.raises(
        DataError, match=r"^Once gives other samples when it is iterated again, so a run could not go on"
    ):
        first_batch(Once(), SIZE)
    with pytest.raises(
        DataError, match=r"Noisy can only be iterated; a set to evaluate on must have __len__ and __getitem__"
    ):
        list(evaluation_batches(Noisy(), 4))
