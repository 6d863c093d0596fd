"""Batches of a dataset that is only iterated."""

import random
from contextlib import closing

import pytest
import structlog
import torch

from edge_agent.data import BatchLoader, evaluation_batches, first_batch
from edge_agent.data.stream import is_iterated
from shared.errors import DataError
from shared.model.random_state import derive_seed
from tests.support.placed import recipe
from tests.support.streamed import (
    Breaking,
    Broken,
    Buffered,
    ByDataset,
    ByIterator,
    Drawn,
    InEpochs,
    Itself,
    Noisy,
    Once,
    OnceLoaded,
    Told,
)

torch.set_num_threads(1)

SEED, SIZE, STEPS = 3, 4, 5  # of 20 samples in an epoch


@pytest.fixture
def logged():
    with structlog.testing.capture_logs() as logs:
        yield lambda: [(each["event"], each["reason"]) for each in logs]


TELLING = [ByDataset, OnceLoaded, ByIterator, Itself]


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


def resumed(dataset, **keys):
    return loader(dataset, resumes_by_state=True, **keys)


def states_of(dataset, steps=13):
    """The states before each step, as a checkpoint there has them."""
    read = resumed(dataset)
    batches = read.iterate(0, steps)
    return [(read.state_before(step), next(batches))[0] for step in range(steps)]


@pytest.mark.parametrize("count", [30, 13, 7])
@pytest.mark.parametrize("kind", TELLING)
def test_another_process_goes_on_by_a_state_and_draws_no_earlier_sample_again(kind, count):
    expected, states = list(plain(kind(count), 13)), states_of(kind(count))
    for start, state in enumerate(states):
        dataset = kind(count)
        read = resumed(dataset)
        read.read_by(start, state)
        labels = [batch.labels.tolist() for batch in read.iterate(start, 13)]
        assert labels == [labels for _, labels in expected[start:]]
        assert len(dataset.drawn) == SIZE * (13 - start)
    assert [state is None for state in states] == [step % STEPS == 0 for step in range(13)]


@pytest.mark.parametrize("kind", TELLING)
def test_noise_is_that_of_the_plain_loop_too(kind):
    expected, states = list(plain(kind(), 9)), states_of(kind())
    read = resumed(kind())
    read.read_by(7, states[7])
    for batch in read.iterate(7, 9):
        assert torch.equal(batch.inputs, expected[batch.step][0])


@pytest.mark.parametrize("count", [30, 13])
@pytest.mark.parametrize("kind", TELLING)
def test_what_was_read_ahead_is_read_again_by_a_state(kind, count):
    expected = list(plain(kind(count), 13))
    dataset = kind(count)
    read = resumed(dataset)
    for start, stop in ((0, 4), (3, 8), (7, 9), (7, 10), (9, 13)):
        dataset.drawn.clear()
        labels = [batch.labels.tolist() for batch in read.iterate(start, stop)]
        assert labels == [labels for _, labels in expected[start:stop]]
        assert len(dataset.drawn) == SIZE * (stop - start)
    read.read_by(5, None)  # to the begin of an epoch, which no state tells
    assert next(read.iterate(5, 6)).labels.tolist() == expected[5][1]


def test_the_states_of_the_last_steps_alone_are_kept():
    read = BatchLoader(ByDataset(), SIZE, SEED, True, 0, steps_per_epoch=10**6, resumes_by_state=True)
    for _ in read.iterate(0, 100):
        pass
    assert [step for step in range(101) if read.state_before(step)] == list(range(93, 101))


def test_all_states_of_an_update_that_is_read_ahead_are_kept():
    read = BatchLoader(ByDataset(), SIZE, SEED, True, 0, steps_per_epoch=10**6, resumes_by_state=True)
    next(read.counted(20, 40, recipe("sgd", accumulate_batches=20, mean="token")))
    assert read.state_before(21) is not None


@pytest.mark.slow
def test_a_worker_process_goes_on_by_a_state():
    expected, states = list(plain(ByDataset(), 13)), states_of(ByDataset())
    with closing(resumed(ByDataset(), workers=1)) as read:
        for start, stop in ((8, 11), (9, 13)):
            read.read_by(start, states[start])
            labels = [batch.labels.tolist() for batch in read.iterate(start, stop)]
            assert labels == [labels for _, labels in expected[start:stop]]
            assert read.state_before(stop) == [*states, states_of(ByDataset(), 14)[13]][stop]


@pytest.mark.parametrize("kind", TELLING)
def test_the_first_batch_tells_that_a_set_goes_on_by_its_state(kind, logged):
    assert first_batch(kind(), SIZE).resumes_by_state
    assert not logged()


def test_a_set_without_states_is_drawn_again_without_a_word(logged):
    assert not first_batch(Noisy(), SIZE).resumes_by_state
    assert not logged()


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Drawn(), "the samples after it are others when it is loaded"),
        (Buffered(), "the samples after it are others when it is loaded"),
        (Broken(), "Broken cannot go on from the state that it told: KeyError: 'shard'"),
        (Told(torch.zeros(1)), "TypeError: Object of type Tensor is not JSON serializable"),
        (Told((1, 2)), "JSON gives another one back"),
        (Told({1: 2}), "JSON gives another one back"),
        (Told(float("nan")), "JSON gives another one back"),
        (Told("a" * (64 << 10)), "it has 65577 bytes as JSON, more than 65536"),
    ],
)
def test_a_state_that_is_not_kept_is_one_sentence_and_samples_are_drawn_again(dataset, why, logged):
    first = first_batch(dataset, SIZE)
    assert not first.resumes_by_state
    ((event, reason),) = logged()
    assert event == "the state of the training set is not kept, so a resumed run draws the samples of its epoch again"
    assert reason == why
    expected = list(plain(dataset, 9))
    assert [batch.labels.tolist() for batch in loader(dataset).iterate(7, 9)] == [labels for _, labels in expected[7:]]


def test_a_state_that_grows_too_large_is_not_kept_any_longer(logged):
    dataset = Told("")
    read = resumed(dataset)
    for batch in read.iterate(0, 4):
        if batch.step == 1:
            dataset.state = "a" * (64 << 10)
    assert [read.state_before(step) is not None for step in range(5)] == [False, True, True, False, False]
    assert len(logged()) == 1


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
