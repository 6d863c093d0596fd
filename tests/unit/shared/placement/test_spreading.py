"""Blocks of a group are spread over its trainers by their bytes, and blocks that use one weight stay together."""

import pytest

from shared.errors import ConfigError
from shared.placement import spread


def test_the_largest_blocks_go_first_and_each_to_the_worker_with_the_fewest_bytes():
    assert spread({0: 1, 1: 8, 2: 5, 4: 4}, (), ("a", "b")) == {0: "a", 1: "a", 2: "b", 4: "b"}
    assert spread({0: 3, 1: 3, 2: 3}, (), ("a", "b", "c")) == {0: "a", 1: "b", 2: "c"}
    assert spread({0: 0, 1: 0}, (), ("a", "b")) == {0: "a", 1: "b"}, "blocks of statistics alone"


def test_blocks_that_use_one_weight_have_one_owner():
    assert spread({0: 4, 1: 5, 2: 4}, ((0, 2),), ("a", "b")) == {0: "a", 1: "b", 2: "a"}


def test_every_worker_has_a_block():
    with pytest.raises(ConfigError, match="3 trainers are configured, and the group's model has 2 blocks"):
        spread({0: 1, 1: 1, 2: 1}, ((0, 1),), ("a", "b", "c"))
