"""The keys that a training set cannot have that is only iterated."""

import re

import pytest
import torch

from edge_agent.data import first_batch
from edge_agent.experiment.iterated import check_iterated
from shared.errors import ConfigError, DataError
from tests.support.iterated import DigitsInTurn
from tests.support.running import edge_config
from tests.support.samples import FlatDigits


def check(dataset, *flags):
    config = edge_config(*flags)
    check_iterated(dataset, config.data, config.deployment)


@pytest.mark.parametrize(
    ("key", "flags"),
    [
        ("data.sampler", ['data.sampler="tests.support.batches:rare_first"']),
        ("data.sample_weights", ['data.sample_weights="tests.support.batches:mostly_small"']),
        ("data.batch_sampler", ['data.batch_sampler="tests.support.batches:by_light"']),
        ("data.shard", ['data.shard="rank"', 'group={name="line", rank=1, size=2}']),
        ("data.on_error", ['data.on_error="skip"']),
        ("deployment.recall", ["deployment.recall=true", 'model.frozen_mode="eval"']),
        ("deployment.changes", ['deployment.changes="topk1"']),
    ],
)
def test_what_needs_numbers_of_samples_is_one_sentence(key, flags):
    says = f"{key} is set, and samples of DigitsInTurn have no numbers, as it can only be iterated; leave it out"
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        check(DigitsInTurn(), "data.steps_per_epoch=9", *flags)
    check(FlatDigits(), *flags)


def test_workers_of_an_iterator_are_at_most_one():
    says = "data.workers is 2, and DigitsInTurn can only be iterated, by one process; set it to 0 or 1"
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        check(DigitsInTurn(), "data.steps_per_epoch=9", "data.workers=2")
    check(DigitsInTurn(), "data.steps_per_epoch=9", "data.workers=1")


def test_steps_of_an_epoch_are_told_where_there_is_no_length_and_nowhere_else():
    with pytest.raises(
        ConfigError, match=r"^DigitsInTurn can only be iterated; set data\.steps_per_epoch to the steps"
    ):
        check(DigitsInTurn())
    with pytest.raises(
        ConfigError, match=r"^data\.steps_per_epoch is set, and FlatDigits has a length, so an epoch has"
    ):
        check(FlatDigits(), "data.steps_per_epoch=9")
    check(DigitsInTurn(), "data.steps_per_epoch=9")
    check(FlatDigits())


class OfALength(DigitsInTurn):
    """Knows how many samples it gives."""

    def __len__(self):
        return 320


def test_the_length_of_a_set_that_is_iterated_does_not_count():
    with pytest.raises(ConfigError, match=r"^OfALength can only be iterated; set data\.steps_per_epoch to the steps"):
        check(OfALength())
    check(OfALength(), "data.steps_per_epoch=9")


def test_a_set_with_items_and_without_a_length_is_not_said_to_have_one():
    class Endless:
        def __getitem__(self, index):
            return torch.zeros(4), index % 3

    check(Endless(), "data.steps_per_epoch=9")
    with pytest.raises(DataError, match=r"^Endless is not a dataset; it must have __len__ and __getitem__$"):
        first_batch(Endless(), 4)


@pytest.mark.parametrize("flags", [(), ("data.steps_per_epoch=9",)])
def test_what_can_be_iterated_once_only_is_one_sentence(flags):
    says = "generator can be iterated once only; return an object whose __iter__ begins again"
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        check((sample for sample in DigitsInTurn()), *flags)
