"""Features that are kept: those of one crossing, until another begins, and those of a checkpoint after a return to it."""

import pytest
import torch

from shared.errors import ProtocolError, StorageError
from shared.model.spec import TensorSpec
from shared.training.kept_features import KeptFeatures
from shared.training.state_file import deserialize, serialize

SPECS = {0: TensorSpec((4, 3), torch.float32), 2: TensorSpec((4, 2, 2), torch.bfloat16)}


def begun(crossing="one", samples=6):
    kept = KeptFeatures(samples)
    kept.begin(crossing, SPECS)
    return kept


def numbers(*given):
    return torch.tensor(given)


def test_the_last_feature_of_a_sample_is_kept_by_slot():
    kept = begun()
    kept.keep(0, numbers(4, 1), torch.ones(2, 3))
    kept.keep(0, numbers(1), torch.full((1, 3), 2.0))
    kept.keep(2, numbers(0), torch.zeros(1, 2, 2, dtype=torch.bfloat16))
    features, is_kept = kept.rows(0, numbers(0, 1, 4))
    assert is_kept.tolist() == [False, True, True]
    assert features[1:, 0].tolist() == [2.0, 1.0]
    assert kept.rows(2, numbers(0, 1))[1].tolist() == [True, False]


@pytest.mark.parametrize("number", [-1, 6])
def test_a_sample_that_is_none_of_the_data_set_is_refused(number):
    with pytest.raises(ProtocolError, match="none of the 6"):
        begun().rows(0, numbers(0, number))


def test_another_crossing_begins_with_nothing_and_the_same_goes_on():
    kept = begun()
    kept.keep(0, numbers(1), torch.ones(1, 3))
    kept.begin("one", SPECS)
    assert kept.rows(0, numbers(1))[1].all()
    kept.begin("another", SPECS)
    assert not kept.rows(0, torch.arange(6))[1].any()
    kept.begin("one", SPECS)
    assert not kept.rows(0, torch.arange(6))[1].any()


def test_a_state_brings_back_what_was_kept_and_only_that():
    kept = begun("feature 2 from edge to a/b")
    kept.keep(0, numbers(1, 3), torch.ones(2, 3))
    state = deserialize(serialize(kept.copy().rows), 4096)
    kept.keep(0, numbers(3, 5), torch.zeros(2, 3))
    for one in (kept, KeptFeatures(6)):
        one.put_back(state)
        one.begin("feature 2 from edge to a/b", SPECS)
        features, is_kept = one.rows(0, torch.arange(6))
        assert is_kept.nonzero().view(-1).tolist() == [1, 3]
        assert torch.equal(features[[1, 3]], torch.ones(2, 3))
    kept.put_back({})
    kept.begin("feature 2 from edge to a/b", SPECS)
    assert not kept.rows(0, torch.arange(6))[1].any()


@pytest.mark.parametrize(
    "damage",
    [
        {"one/0/numbers": numbers(1, 6)},
        {"one/0/numbers": numbers(1)},
        {"one/first/features": torch.ones(2, 3)},
        {"features": torch.ones(2, 3)},
    ],
)
def test_a_state_of_other_samples_is_refused_and_what_was_kept_stays(damage):
    kept = begun()
    kept.keep(0, numbers(1, 3), torch.ones(2, 3))
    with pytest.raises(StorageError, match="of 6 samples"):
        kept.put_back(kept.copy().rows | damage)
    assert kept.rows(0, torch.arange(6))[1].nonzero().view(-1).tolist() == [1, 3]


def test_a_copy_counts_all_of_its_bytes_however_narrow_features_are():
    kept = KeptFeatures(6)
    kept.begin("one", {0: TensorSpec((4, 1), torch.float32)})
    kept.keep(0, numbers(0, 1, 2), torch.ones(3, 1))
    kept.copy().written(())
    kept.keep(0, numbers(2, 5), torch.ones(2, 1))
    copied = kept.copy()
    assert copied.changed_bytes == sum(rows.nbytes for rows in copied.rows.values()) == 2 * (4 + 8)
    assert copied.whole_bytes == 4 * (4 + 8)
