"""The loader: the step is its whole position, and the samples do not depend on their reader."""

import multiprocessing
import random
import threading
from contextlib import closing
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from edge_agent.data import BatchLoader, EvaluationLoader, Reading, TensorDataset, evaluation_batches
from shared.errors import DataError
from shared.model.inputs import features_of_inputs
from shared.model.random_state import random_state
from shared.training.losses import label_tensors
from tests.support.placed import recipe

torch.set_num_threads(1)


def numbered(count: int) -> TensorDataset:
    """Build a data set in which sample i, and its label, is the number i."""
    return TensorDataset(torch.arange(count).float().unsqueeze(1), torch.arange(count))


class Noisy:
    """A data set that draws from every generator that an augmentation may use."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor(drawn, dtype=torch.float64), index


class Unpicklable(Noisy):
    def __init__(self) -> None:
        self.function = lambda: None


class Dying(Noisy):
    def __getitem__(self, index: int):
        raise SystemExit(3)


@given(start=st.integers(0, 20), length=st.integers(0, 12), batches=st.integers(1, 4), drop_last=st.booleans())
def test_counts_of_an_update_are_the_same_wherever_reading_begins_and_ends(start, length, batches, drop_last):
    told = recipe("sgd", accumulate_batches=batches)
    loader = BatchLoader(numbered(10), 4, 3, drop_last, workers=0)
    whole = list(loader.counted(0, 36, told))
    for first in range(0, 36, batches):
        update = whole[first : first + batches]
        assert {each.counts[1].item() for each in update} == {sum(each.samples for each in update)}
    found = list(loader.counted(start, start + length, told))
    assert [(each.step, each.counts.tolist(), each.labels.tolist()) for each in found] == [
        (each.step, each.counts.tolist(), each.labels.tolist()) for each in whole[start : start + length]
    ]


def labels(batches) -> list[list[int]]:
    return [batch.labels.tolist() for batch in batches]


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 10),
    drop_last=st.booleans(),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 1000),
)
def test_an_epoch_is_a_permutation(count, batch_size, drop_last, seed, epoch):
    batch_size = min(batch_size, count)
    loader = BatchLoader(numbered(count), batch_size, seed, drop_last, workers=0)
    first = epoch * loader.steps_per_epoch
    seen = labels(loader.iterate(first, first + loader.steps_per_epoch))
    sizes = [len(batch) for batch in seen]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    flat = list(chain.from_iterable(seen))
    assert len(set(flat)) == len(flat)
    if drop_last:
        assert sizes[-1] == batch_size
        assert 0 <= count - len(flat) < batch_size
    else:
        assert sorted(flat) == list(range(count))


@given(
    seed=st.integers(0, 5),
    drop_last=st.booleans(),
    start=st.integers(0, 12),
    length=st.integers(0, 8),
    batch_size=st.integers(1, 4),
)
def test_a_run_that_goes_on_at_any_step_gets_the_same_batches(seed, drop_last, start, length, batch_size):
    whole = list(BatchLoader(Noisy(), batch_size, seed, drop_last, workers=0).iterate(0, 20))
    rest = list(BatchLoader(Noisy(), batch_size, seed, drop_last, workers=0).iterate(start, start + length))
    assert [batch.step for batch in rest] == list(range(start, start + length))
    for batch in rest:
        assert torch.equal(batch.inputs, whole[batch.step].inputs)
        assert torch.equal(batch.labels, whole[batch.step].labels)


def test_epochs_and_seeds_differ_in_order_and_in_randomness():
    def noise(seed: int, epoch: int) -> tuple[list[int], dict[int, list[float]]]:
        (batch,) = BatchLoader(Noisy(), 10, seed, True, workers=0).iterate(epoch, epoch + 1)
        return batch.labels.tolist(), dict(zip(batch.labels.tolist(), batch.inputs.tolist(), strict=True))

    runs = [noise(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert len({tuple(order) for order, _ in runs}) == 4
    for generator in range(3):
        values = {draws[generator] for _, noise in runs for draws in noise.values()}
        assert len(values) == 4 * 10


@pytest.mark.slow
def test_worker_processes_read_the_same_samples():
    here = list(BatchLoader(Noisy(), 3, 5, False, workers=0).iterate(2, 9))
    there = list(BatchLoader(Noisy(), 3, 5, False, workers=2).iterate(2, 9))
    assert [batch.step for batch in there] == [batch.step for batch in here]
    for ours, theirs in zip(here, there, strict=True):
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.labels, theirs.labels)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_the_generators_of_the_process_are_left_alone_between_and_after_batches(workers: int):
    def draws() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    def seed_all() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed_all()
    expected = [draws() for _ in range(3)]
    seed_all()
    drawn = [draws() for _ in BatchLoader(Noisy(), 5, 0, True, workers).iterate(0, 2)]
    assert [*drawn, draws()] == expected


def test_the_spare_normal_number_of_numpy_is_there_again_after_the_last_batch():
    np.random.seed(1)
    expected = np.random.randn(2)[1]
    np.random.seed(1)
    np.random.randn()
    assert len(list(BatchLoader(Noisy(), 5, 0, True, 0).iterate(0, 2))) == 2
    assert np.random.randn() == expected


def test_rows_of_tensors_in_memory_equal_their_stacked_samples():
    inputs, classes, amounts = torch.rand(7, 3, 2), torch.arange(7, dtype=torch.int16), torch.rand(7)

    class OneByOne:
        def __init__(self, dataset) -> None:
            self._dataset = dataset

        def __len__(self) -> int:
            return len(self._dataset)

        def __getitem__(self, index: int):
            return self._dataset[index]

    for labels in (classes, amounts):
        for dataset in (TensorDataset(inputs, labels), torch.utils.data.TensorDataset(inputs, labels)):
            together, single = (BatchLoader(each, 3, 1, False, 0) for each in (dataset, OneByOne(dataset)))
            assert together.reading is Reading.AT_ONCE
            assert single.reading is Reading.AS_IT_SHOWS
            for ours, theirs in zip(together.iterate(0, 6), single.iterate(0, 6), strict=True):
                for one, other in ((ours.inputs, theirs.inputs), (ours.labels, theirs.labels)):
                    assert torch.equal(one, other)
                    assert (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.slow
def test_an_early_stop_leaves_no_worker_process_behind():
    loader = BatchLoader(Noisy(), 5, 0, True, workers=1)
    batches = loader.iterate(0, 1_000_000)
    next(batches)
    assert multiprocessing.active_children()
    batches.close()
    loader.close()
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_worker_processes_live_from_one_pass_to_the_next():
    training, evaluation = BatchLoader(Noisy(), 3, 5, False, workers=1), EvaluationLoader(Noisy(), 4, workers=1)
    seen = list[set[int]]()
    for step in range(3):
        with closing(training.iterate(step, 1_000_000)) as batches:  # it ends with batches under way
            assert next(batches).step == step
        assert sum(len(batch.labels) for batch in evaluation.iterate()) == 10
        seen.append({child.pid for child in multiprocessing.active_children() if child.pid is not None})
    assert len(seen[0]) == 2
    assert seen == [seen[0]] * 3
    training.close()
    evaluation.close()
    assert not multiprocessing.active_children()


class GivingWay:
    """A data set that waits at each sample until another thread has used the random generators."""

    def __init__(self) -> None:
        self.entered_at_sample: int | None = None
        self._entered = threading.Event()
        self._other = threading.Thread(target=self._drop_out)

    def _drop_out(self) -> None:
        with random_state("a block that drops out"):
            self._entered.set()

    def __len__(self) -> int:
        return 5_000

    def __getitem__(self, index: int):
        if not self._other.ident:
            self._other.start()
        if self.entered_at_sample is None and self._entered.wait(0.01):
            self.entered_at_sample = index
        return torch.rand(3), index


def test_another_thread_draws_random_numbers_while_a_batch_is_read():
    dataset = GivingWay()
    (batch,) = evaluation_batches(dataset, 5_000)
    assert dataset.entered_at_sample is not None, "it had to wait for the whole batch"
    (undisturbed,) = evaluation_batches(dataset, 5_000)
    assert torch.equal(batch.inputs, undisturbed.inputs), "who is let in changes no sample"


@given(count=st.integers(1, 20), batch_size=st.integers(1, 25))
def test_evaluation_goes_through_all_samples_in_order(count: int, batch_size: int):
    seen = labels(evaluation_batches(numbered(count), batch_size))
    assert list(chain.from_iterable(seen)) == list(range(count))
    assert all(len(batch) == batch_size for batch in seen[:-1])
    assert [batch.step for batch in evaluation_batches(numbered(count), batch_size)] == list(range(len(seen)))


def test_a_dataset_that_cannot_be_sent_to_a_worker_is_named():
    with pytest.raises(DataError, match=r"Unpicklable cannot be sent to worker processes .*; use 0 workers"):
        list(evaluation_batches(Unpicklable(), 5, workers=1))


@pytest.mark.slow
def test_a_worker_that_ends_is_an_error_and_no_wait():
    with pytest.raises(DataError, match="a worker process of Dying ended"):
        list(evaluation_batches(Dying(), 5, workers=1))


def test_a_dataset_that_cannot_fill_a_step_is_refused():
    assert BatchLoader(numbered(4), 4, 0, True, 0).steps_per_epoch == 1
    assert BatchLoader(numbered(4), 5, 0, False, 0).steps_per_epoch == 1
    with pytest.raises(DataError, match="TensorDataset has 4 samples, fewer than one batch of 5"):
        BatchLoader(numbered(4), 5, 0, True, 0)
    with pytest.raises(DataError, match="list is empty"):
        BatchLoader([], 1, 0, False, 0)
    with pytest.raises(DataError, match="generator is not a dataset; it must have __len__ and __getitem__"):
        list(evaluation_batches((x for x in [1]), 1))  # type: ignore[arg-type]


class Counting(list):
    """Samples that note when they are read."""

    def __init__(self, count):
        super().__init__((torch.full((2,), float(number)), number) for number in range(count))
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


@given(
    count=st.integers(2, 12),
    batch_size=st.integers(1, 5),
    drop_last=st.booleans(),
    first=st.integers(0, 8),
    stretches=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_samples_that_a_step_has_had_are_left_out_and_not_read(count, batch_size, drop_last, first, stretches):
    assume(count >= batch_size)
    dataset = Counting(count)
    whole, lacking = (BatchLoader(dataset, batch_size, 3, drop_last, workers=0) for _ in range(2))
    start, had = first, set()
    for length in stretches:
        expected = list(whole.iterate(start, start + length))
        dataset.read.clear()
        for batch, all_of_it in zip(lacking.lacking(start, start + length, first), expected, strict=True):
            assert (batch.step, batch.numbers.tolist()) == (all_of_it.step, all_of_it.labels.tolist())
            left = [number for number in batch.numbers.tolist() if number not in had]
            (inputs,), (labels,) = features_of_inputs(batch.inputs), label_tensors(batch.labels)
            assert (labels.tolist(), labels.dtype) == (left, torch.int64)
            assert (inputs[:, 0].tolist(), inputs.shape[1:]) == (left, (2,))
            had |= set(left)
            assert dataset.read == left
            dataset.read.clear()
        start += length


@pytest.mark.slow
def test_the_same_are_left_out_where_other_processes_read():
    here, there = (BatchLoader(Noisy(), 3, 5, False, workers) for workers in (0, 1))
    with closing(there):
        for one, other in zip(here.lacking(2, 11, 2), there.lacking(2, 11, 2), strict=True):
            assert one.numbers.tolist() == other.numbers.tolist()
            assert [len(each) for each in label_tensors(one.labels)] == [
                len(each) for each in label_tensors(other.labels)
            ]
