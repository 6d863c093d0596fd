"""Gradients that reveal data: a block on raw samples and the last block send them only to workers with the permission."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.placement import (
    BlockFacts,
    ModelFacts,
    Permissions,
    Rows,
    Source,
    Tile,
    check,
    told_by_gradients,
    two_workers,
)

FOUR = ModelFacts(tuple(BlockFacts(name) for name in ("first", "second", "third", "last")))
FAR = frozenset({"far"})
HERE = two_workers("edge", "far", 4, 4, 8)
"""All blocks at the edge."""


def owned(*blocks):
    return replace(HERE, owners=dict.fromkeys(blocks, "far"))


@pytest.mark.parametrize(
    ("block", "says"), [(0, "samples, because it computes on raw ones"), (3, "labels, because it is the last")]
)
def test_the_owner_of_a_block_that_reveals_data_must_be_named(block, says):
    with pytest.raises(ConfigError) as refused:
        check(owned(block), FOUR, Permissions(labels_to=frozenset({"edge"})))
    assert f"the gradient of block {block} ({FOUR.blocks[block].name}) would go from 'edge' to 'far'" in str(
        refused.value
    )
    assert says in str(refused.value)
    assert "privacy.gradients_to" in str(refused.value)
    check(owned(block), FOUR, Permissions(gradients_to=FAR, labels_to=frozenset({"edge"})))


def test_blocks_in_the_middle_may_be_owned_by_anybody():
    check(owned(1, 2), FOUR, Permissions(labels_to=frozenset({"edge"})))
    assert told_by_gradients(owned(1, 2), FOUR, "far") == ()


def test_a_worker_that_may_have_samples_or_labels_may_have_gradients_that_reveal_them():
    check(owned(0), FOUR, Permissions(inputs_to=FAR))
    check(owned(3), FOUR, Permissions(labels_to=FAR))
    with pytest.raises(ConfigError, match="could tell labels"):
        check(owned(3), FOUR, Permissions(inputs_to=FAR))
    with pytest.raises(ConfigError, match="could tell samples"):
        check(owned(0), FOUR, Permissions(labels_to=FAR))


def test_without_permissions_for_labels_only_the_worker_with_the_loss_may_learn_them():
    with pytest.raises(ConfigError, match="could tell labels"):
        check(owned(3), FOUR, Permissions())
    divided = (Tile("edge", 3, 4, Rows(0, 4)), Tile("far", 3, 4, Rows(4, 8)))
    shared = replace(HERE, tiles=(Tile("edge", 0, 3, Rows(0, 8)), *divided), owners={3: "far"})
    check(shared, FOUR, Permissions())


def test_a_block_behind_features_that_reveal_samples_reveals_them_too():
    lookup = replace(FOUR, why_raw=("behind block 'first' all can be read off",))
    with pytest.raises(ConfigError, match=r"block 1 \(second\) .* could tell samples"):
        check(owned(1), lookup, Permissions())


def test_a_block_that_never_changes_reveals_nothing():
    frozen = replace(FOUR, blocks=(BlockFacts("first", trainable=False), *FOUR.blocks[1:]))
    check(owned(0), frozen, Permissions())


def test_a_worker_may_learn_of_its_own_samples():
    mine = replace(owned(0, 3), sources=(Source("far", Rows(0, 8)),))
    check(mine, FOUR, Permissions(inputs_to=frozenset({"edge"}), labels_to=frozenset({"edge"})))
    ours = replace(mine, sources=(Source("far", Rows(0, 4)), Source("edge", Rows(4, 8))))
    with pytest.raises(ConfigError, match="could tell samples"):
        check(ours, FOUR, Permissions(inputs_to=frozenset({"edge"}), labels_to=frozenset({"edge"})))


def test_new_weights_tell_as_much_as_gradients():
    """The owner's new weights less the old ones are the whole gradient, and a holder knows its own part."""
    divided = (Tile("edge", 0, 1, Rows(0, 4)), Tile("far", 0, 1, Rows(4, 8)))
    shared = replace(HERE, tiles=(*divided, Tile("edge", 1, 4, Rows(0, 8))), owners={0: "edge"})
    with pytest.raises(ConfigError, match="raw samples would go"):
        check(shared, FOUR, Permissions(gradients_to=FAR))
    assert "inputs" in told_by_gradients(shared, FOUR, "far")


def test_revealed_data_is_listed_for_every_worker():
    assert told_by_gradients(owned(0), FOUR, "far") == ("inputs",)
    assert told_by_gradients(owned(0, 3), FOUR, "far") == ("inputs", "labels")
    assert told_by_gradients(owned(0, 3), FOUR, "edge") == ()
    whole = Rows(0, 8)
    staying = replace(HERE, tiles=(Tile("edge", 0, 1, whole), Tile("far", 1, 3, whole), Tile("edge", 3, 4, whole)))
    assert told_by_gradients(staying, FOUR, "far") == ("labels",), "error gradients tell of labels"
