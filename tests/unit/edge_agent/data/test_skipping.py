"""Samples that cannot be read: which others stand for them, and how many may."""

import pytest
import torch

from edge_agent.data import BatchLoader, first_batch
from edge_agent.data.skipping import MOST_TRIES, Skipping
from shared.errors import DataError
from shared.model.random_state import derive_seed

torch.set_num_threads(1)

COUNT, SEED = 12, 3


class Holes:
    """Sample i is the number i. Some raise, and one is None; each draws before it does."""

    def __init__(self, broken=(2, 7, 8), empty=4, count=COUNT):
        self.broken, self.empty, self.count = broken, empty, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = torch.rand(()).item()
        if index in self.broken:
            raise OSError(f"photos/{index}.png is torn")
        return None if index == self.empty else (torch.tensor([index, noise]), index)


def loader(dataset, most=4, workers=0, batch_size=5):
    return BatchLoader(dataset, batch_size, SEED, False, workers, skipping=Skipping(SEED, most))


def tried(index, epoch):
    """The sample that stands for one, and the number of those before it that cannot be read."""
    other, attempt = index, 0
    while other in (2, 4, 7, 8):
        other, attempt = derive_seed(SEED, "instead", epoch, index, attempt) % COUNT, attempt + 1
    return other, attempt


def stands_for(index, epoch):
    return tried(index, epoch)[0]


def tries(index, epoch):
    return tried(index, epoch)[1]


def plain_order(epoch):
    generator = torch.Generator().manual_seed(derive_seed(SEED, "order", epoch))
    return torch.randperm(COUNT, generator=generator).tolist()


def plain_epoch(epoch):
    return [stands_for(index, epoch) for index in plain_order(epoch)]


def test_another_sample_stands_for_each_that_cannot_be_read():
    seen = [number for batch in loader(Holes()).iterate(0, 6) for number in batch.labels.tolist()]
    assert seen == plain_epoch(0) + plain_epoch(1)
    assert {stands_for(2, epoch) for epoch in range(20)} > {stands_for(2, 0)}, "another one in other epochs"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_stand_for_them_after_a_resume_and_in_worker_processes(workers):
    whole = list(loader(Holes()).iterate(0, 9))
    for start in (0, 4, 8):
        again = loader(Holes(), workers=workers)
        for batch in again.iterate(start, 9):
            assert torch.equal(batch.inputs, whole[batch.step].inputs)
            assert torch.equal(batch.labels, whole[batch.step].labels)
        again.close()


def test_they_are_counted_by_the_step():
    read = loader(Holes())
    list(read.iterate(0, 3))
    counts = [sum(tries(index, 0) for index in plain_order(0)[begin : begin + 5]) for begin in (0, 5, 10)]
    assert read.skipping.by_step == {step: count for step, count in enumerate(counts) if count}
    assert sum(counts) >= 4


def test_one_more_than_the_limit_ends_the_reading_and_the_same_one_twice_does_not():
    assert len(list(loader(Holes(), most=4).iterate(0, 30))) == 30
    with pytest.raises(DataError) as raised:
        list(loader(Holes(), most=3).iterate(0, 30))
    assert str(raised.value).startswith(
        "more samples cannot be read than data.max_skipped, 3, allows; the last: sample "
    )


def test_a_set_of_which_nothing_can_be_read_ends_after_some_tries():
    with pytest.raises(
        DataError, match=rf"^{MOST_TRIES} samples were tried in turn and none could be read; sample \d+ of "
    ):
        list(loader(Holes(broken=range(COUNT)), most=99).iterate(0, 1))


def test_the_first_batch_of_all_is_whole():
    batch = first_batch(Holes(), 5, None, Skipping(SEED, 9))
    assert batch.labels.tolist() == [0, 1, stands_for(2, 0), 3, stands_for(4, 0)]


class OddShapes(Holes):
    """All can be read by themselves; those that were broken have another shape."""

    def __getitem__(self, index):
        odd = index in (2, 4, 7, 8)
        return torch.full((1, 2) if odd else (2,), index), index


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_another_sample_stands_for_one_of_another_shape_than_the_first_ones_have(workers):
    skipping = Skipping(SEED, 4)
    first = first_batch(OddShapes(), 5, None, skipping, lambda batch: (batch[0].sum(1), batch[1]))
    assert first.labels.tolist() == [0, 1, stands_for(2, 0), 3, stands_for(4, 0)]
    read = BatchLoader(OddShapes(), 5, SEED, False, workers, skipping=skipping)
    assert [number for batch in read.iterate(0, 6) for number in batch.labels.tolist()] == plain_epoch(0) + plain_epoch(
        1
    )
    read.close()
    few = Skipping(SEED, 3)
    with pytest.raises(
        DataError, match=r"the last: sample \d of OddShapes has input int64 of shape \(1, 2\), label int64"
    ):
        first_batch(OddShapes(), 12, None, few)


class OddOnes(Holes):
    """Samples of two numbers, and some of three."""

    def __init__(self, odd, count=COUNT):
        super().__init__((), None, count)
        self.odd = odd

    def __getitem__(self, index):
        return torch.full((3 if index in self.odd else 2,), index), index


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize(
    ("odd", "count", "width"),
    [
        ({0}, COUNT, 2),
        ({0, 1, 2}, COUNT, 2),
        (set(range(0, 12, 2)), COUNT, 3),  # as many of each: the first one tells
        (set(range(2, 9)), COUNT, 3),
        ({0}, 2, 3),
        ({0}, 3, 2),
        (set(range(30)), 1000, 2),
    ],
)
def test_the_kind_that_most_samples_have_is_that_of_all(odd, count, width, batch_size):
    skipping = Skipping(SEED, count)
    first = first_batch(OddOnes(odd, count), batch_size, None, skipping)
    read = BatchLoader(OddOnes(odd, count), batch_size, SEED, False, 0, skipping=skipping)
    assert {batch.inputs.shape[1] for batch in (first, *read.iterate(0, read.steps_per_epoch))} == {width}


def test_what_a_dataset_of_ours_says_is_not_told_as_an_error_of_a_program():
    class Files(Holes):
        def __getitem__(self, index):
            raise DataError(f"photos/{index}.png is torn")

    with pytest.raises(DataError, match=r"^sample \d+ of Files cannot be read: photos/\d+.png is torn$"):
        list(BatchLoader(Files(), 5, SEED, False, 0).iterate(0, 1))
