"""The order of samples that a user's function decides."""

import math
import random
import sys
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

from edge_agent.data import BatchLoader, TensorDataset
from edge_agent.data.order import load_order
from edge_agent.data.skipping import Skipping
from shared.errors import DataError
from shared.model.random_state import derive_seed

torch.set_num_threads(1)

COUNT, SEED = 20, 4
NAME = "given_orders:function"
CALLS = []
IN_MEMORY = TensorDataset(torch.arange(COUNT).float().unsqueeze(1), torch.arange(COUNT))


@pytest.fixture
def loader(monkeypatch):
    """Makes a loader whose order a function decides, under one of the keys."""

    def make(key, function, drop_last=True, skipping=None, dataset=IN_MEMORY):
        monkeypatch.setitem(sys.modules, "given_orders", SimpleNamespace(function=function))
        keys = {name: NAME if name == key else None for name in ("sampler", "weights", "batch_sampler")}
        order = load_order(**keys, dataset=dataset, batch_size=4, seed=SEED)
        return BatchLoader(dataset, 4, SEED, drop_last, 0, skipping=skipping, order=order)

    return make


def labels(batches):
    return [batch.labels.tolist() for batch in batches]


def backwards(dataset, seed, epoch):
    return [(epoch + seed + index) % len(dataset) for index in range(10, 0, -1)]


def test_an_epoch_has_the_samples_that_the_sampler_names(loader):
    made = loader("sampler", backwards, drop_last=False)
    assert made.steps_per_epoch == 3
    whole = [backwards(range(COUNT), SEED, epoch) for epoch in range(3)]
    assert labels(made.iterate(0, 9)) == [epoch[begin : begin + 4] for epoch in whole for begin in (0, 4, 8)]
    assert labels(made.iterate(5, 7)) == labels(made.iterate(0, 9))[5:7]
    assert loader("sampler", backwards).steps_per_epoch == 2


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_the_numbers_of_samples_may_have_any_whole_type(loader, kind):
    made = loader("sampler", lambda *_: np.arange(COUNT, dtype=kind))
    assert labels(made.iterate(0, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_a_function_says_in_several_lines_comes_on_one(loader):
    def fail(*_):
        raise ValueError("no order\n  for this epoch")

    with pytest.raises(DataError, match="failed with ValueError: no order for this epoch"):
        loader("sampler", fail)


def test_weights_draw_as_torchs_sampler_does(loader):
    weights = [1.0 + index % 3 for index in range(COUNT)]
    made = loader("weights", lambda _: weights)
    for epoch in (0, 1, 5):
        generator = torch.Generator().manual_seed(derive_seed(SEED, "order", epoch))
        expected = list(WeightedRandomSampler(weights, COUNT, generator=generator))
        assert [*chain(*labels(made.iterate(5 * epoch, 5 * epoch + 5)))] == expected


def test_batches_are_those_that_the_function_makes(loader):
    def batches(_dataset, _seed, epoch, batch_size):
        assert batch_size == 4
        return [[epoch, 1, 2], (3,), torch.tensor([4, 5, 6, 7])]

    made = loader("batch_sampler", batches)
    assert made.steps_per_epoch == 3
    assert labels(made.iterate(3, 6)) == [[1, 1, 2], [3], [4, 5, 6, 7]]
    assert labels(made.iterate(4, 5)) == [[3]]


def test_a_function_that_draws_gives_the_same_in_another_process(loader):
    def drawn(*_):
        return random.sample(range(COUNT), 8) + torch.randperm(COUNT).tolist()[:4]

    random.seed(1)
    before = random.getstate()
    one = labels(loader("sampler", drawn).iterate(0, 6))
    assert random.getstate() == before
    random.seed(2)
    assert labels(loader("sampler", drawn).iterate(2, 6)) == one[2:]
    assert one[:3] != one[3:], "another order in another epoch"


class Torn(TensorDataset):
    def __getitem__(self, index):
        if index == 3:
            raise OSError("torn")
        return super().__getitem__(index)


def test_what_stands_for_a_sample_is_of_the_same_epoch(loader):
    torn = Torn(torch.zeros(COUNT, 1), torch.arange(COUNT), transform=lambda sample: sample)
    made = loader("sampler", lambda *_: [3, 5, 7, 9], skipping=Skipping(SEED, 9), dataset=torn)
    for first, *others in labels(made.iterate(0, 40)):
        assert first in others
        assert others == [5, 7, 9]


def changing(_dataset, _seed, epoch):
    CALLS.append(epoch)
    return [len(CALLS)] * 4


@pytest.mark.parametrize(
    ("key", "function", "says"),
    [
        ("sampler", lambda *_: [0, 1, 2, 20], "names sample 20 in epoch 0; data.train has samples 0 to 19"),
        ("sampler", lambda *_: [0, 1, 2, -1], "names sample -1 in epoch 0; data.train has samples 0 to 19"),
        ("sampler", lambda *_: [], "gives no samples"),
        ("sampler", lambda *_: [0.5] * 4, r"gives float32 of shape \(4,\); it must be numbers of samples"),
        ("sampler", lambda *_: 7, "gives a value of type int; it must be numbers of samples"),
        ("sampler", lambda *_: [0, "one"], "gives a value of type list of 2; it must be numbers of samples"),
        ("sampler", changing, "gives other samples when it is asked again for the same seed and epoch"),
        ("sampler", lambda _: [0], "failed with TypeError: "),
        ("batch_sampler", lambda *_: [[0, 1, 2, 3, 4]], r"gives a batch of 5 samples in epoch 0; it must have 1 to 4 "),
        ("batch_sampler", lambda *_: [[0], []], r"gives a batch of 0 samples in epoch 0; it must have 1 to 4 "),
        ("batch_sampler", lambda *_: [[0], [20]], "names sample 20 in epoch 0"),
        ("batch_sampler", lambda *_: [0, 1], "gives a value of type int; it must be numbers of samples"),
        ("weights", lambda _: [1.0], r"gives float64 of shape \(1,\); it must return a weight of 0 or more for each of 20 s"),
        ("weights", lambda _: [1.0] * 19 + [-1.0], "gives -1 for sample 19; it must return a weight of 0 or more"),
        ("weights", lambda _: [math.nan] * COUNT, "gives nan for sample 0; it must return a weight of 0 or more"),
        ("weights", lambda _: [0] * COUNT, "gives 0 for all samples; it must return a weight of 0 or more"),
        ("weights", lambda _: ["a"] * COUNT, "gives a value of type list of 20; it must return a weight of 0 or more"),
        ("weights", lambda _: None, "gives a value of type NoneType; it must return a weight of 0 or more"),
    ],
)  # fmt: skip
def test_what_is_no_order_is_one_sentence(loader, key, function, says):
    shown = "sample_weights" if key == "weights" else key
    with pytest.raises(DataError, match=f"^data.{shown}: '{NAME}' {says}"):
        loader(key, function)


def test_a_function_of_other_arguments_is_blamed_on_no_file_of_ours(loader):
    with pytest.raises(DataError) as refusal:
        loader("sampler", lambda _: [0])
    assert ".py" not in str(refusal.value)


def test_an_epoch_of_another_length_is_one_sentence(loader):
    made = loader("sampler", lambda _dataset, _seed, epoch: [0] * (8 - 4 * (epoch == 2)))
    sentence = f"^data.sampler: '{NAME}' gives 4 samples for epoch 2 and 8 for epoch 0; each epoch must have as many$"
    with pytest.raises(DataError, match=sentence):
        list(made.iterate(0, 6))
