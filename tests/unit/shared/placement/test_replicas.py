"""Replicas: the keeper of each block, the blocks that a placement lacks, and the heir of a worker that is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.placement import (
    AGENT,
    Cargo,
    ModelFacts,
    OnDisk,
    Permissions,
    Placement,
    Route,
    Rows,
    Source,
    Tile,
    check,
    fetches,
    held_blocks,
    may_keep,
    reassign_worker,
    replica_keepers,
)
from shared.placement.facts import BlockFacts

WHOLE = Rows(0, 8)
TRAINERS = ("near", "far", "cloud")


def chain(*stops, owners=None, labels=None, codecs=None):
    """Build blocks one after the other: the first at the agent, the others at trainers, each up to a stop."""
    workers = (AGENT, *TRAINERS[: len(stops) - 1])
    tiles = [Tile(worker, first, stop, WHOLE) for worker, first, stop in zip(workers, (0, *stops), stops, strict=False)]
    return Placement(
        0, stops[-1], 8, workers, tuple(tiles), (Source(AGENT, WHOLE),), owners or {}, labels, codecs=codecs or {}
    )


FOUR = chain(1, 2, 3, 4)
DIVIDED = Placement(
    0,
    2,
    8,
    (AGENT, "near", "far"),
    (Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 2, Rows(0, 4)), Tile("far", 1, 2, Rows(4, 8))),
    (Source(AGENT, WHOLE),),
    {1: "near"},
)


def anybody(_block, _worker):
    """Permit all."""
    return True


def keepers(placement, trainers, permitted=anybody):
    return replica_keepers(placement, trainers, range(placement.blocks), permitted)


def test_each_trainers_blocks_lie_with_the_next_and_the_last_ones_with_the_one_before():
    assert keepers(FOUR, TRAINERS) == {("near", "far"): [1], ("far", "cloud"): [2], ("cloud", "far"): [3]}
    assert replica_keepers(FOUR, TRAINERS, [0, 3], anybody) == {("cloud", "far"): [3]}


def test_a_trainer_that_is_not_there_keeps_nothing_and_one_alone_has_the_agent():
    assert keepers(chain(1, 2, 2, 4), ["near", "cloud"]) == {("near", "cloud"): [1], ("cloud", "near"): [2, 3]}
    assert keepers(chain(1, 4), ["near"]) == {("near", AGENT): [1, 2, 3]}
    assert keepers(DIVIDED, ["near", "far"]) == {("near", "far"): [1]}, "who updates nothing has nothing to lose"


def test_a_candidate_keeps_the_blocks_of_a_trainer_alone_and_of_no_other():
    alone, two = chain(1, 4), chain(1, 2, 4)
    everybody = ["near", "far", "beside"]
    assert replica_keepers(alone, everybody, range(4), anybody, "beside") == {("near", "beside"): [1, 2, 3]}
    assert replica_keepers(alone, ["near"], range(4), anybody, "beside") == {("near", AGENT): [1, 2, 3]}
    assert replica_keepers(alone, everybody, range(4), anybody, "near") == {("near", AGENT): [1, 2, 3]}
    assert replica_keepers(two, everybody, range(4), anybody, "beside") == keepers(two, ["near", "far"])
    assert replica_keepers(alone, everybody, [1, 2], lambda block, worker: block == 1 or worker == AGENT, "beside") == {
        ("near", "beside"): [1],
        ("near", AGENT): [2],
    }


def test_the_agent_keeps_what_the_neighbour_may_not():
    placement = chain(0, 2, 4)
    assert keepers(placement, ["near", "far"], lambda block, worker: block in (1, 2) or worker == AGENT) == {
        ("near", AGENT): [0],
        ("near", "far"): [1],
        ("far", "near"): [2],
        ("far", AGENT): [3],
    }


def test_a_block_whose_weights_tell_of_samples_or_labels_is_kept_by_those_that_may_know_them():
    model, near, nobody = ModelFacts(FACTS.blocks, why_raw=("it is an embedding",)), frozenset({"near"}), frozenset()

    def kept(worker, permissions):
        return [block for block in range(4) if may_keep(block, worker, model, permissions)]

    assert kept("near", Permissions()) == [2, 3], "labels may be wherever the loss may be"
    assert kept("near", Permissions(labels_to=nobody)) == [2]
    assert kept("near", Permissions(inputs_to=near, labels_to=nobody)) == [0, 1, 2]
    assert kept("near", Permissions(labels_to=near)) == [2, 3]
    assert kept("near", Permissions(gradients_to=near, labels_to=nobody)) == [0, 1, 2, 3]
    assert kept("far", Permissions(near, near, near)) == [2]
    assert kept(AGENT, Permissions(labels_to=nobody)) == [0, 1, 2, 3]


@given(lost=st.sampled_from(TRAINERS), stops=st.lists(st.integers(1, 4), min_size=2, max_size=2).map(sorted))
def test_with_replicas_any_one_trainer_can_be_lost_and_the_others_have_all_blocks_between_them(lost, stops):
    before = chain(1, *stops, 4)
    kept = {worker: set() for worker in before.workers}
    for (_, keeper), blocks in keepers(before, TRAINERS).items():
        kept[keeper] |= set(blocks)
    there = {worker: OnDisk(True, frozenset(kept[worker])) for worker in before.workers if worker != lost}
    for successor in there:
        after = reassign_worker(before, lost, successor)
        between, nowhere = fetches(before, after, there, range(4))
        assert not nowhere
        brought = {receiver: blocks for (_, receiver), blocks in between.items()}
        missing = set(held_blocks(before, lost)) - kept[successor]
        assert brought == ({successor: sorted(missing)} if missing else {})
        assert all(block in there[sender].replicas for (sender, _), blocks in between.items() for block in blocks)


def test_a_missing_block_is_lost_unless_training_never_changes_it():
    there = {worker: OnDisk(True) for worker in (AGENT, "near", "cloud")}
    after = reassign_worker(FOUR, "far", "cloud")
    assert fetches(FOUR, after, there, range(4)) == ({}, [2])
    assert fetches(FOUR, after, there, [0, 1, 3]) == ({}, [])
    assert fetches(FOUR, FOUR, {**there, "far": OnDisk(False)}, range(4))[1] == [2]


def test_blocks_of_trainers_come_from_them_and_the_rest_from_the_device():
    there = {AGENT: OnDisk(True, frozenset({2, 3})), "near": OnDisk(True), "far": OnDisk(False), "cloud": OnDisk(False)}
    assert fetches(FOUR, FOUR, there, range(4)) == ({(AGENT, "far"): [2], (AGENT, "cloud"): [3]}, [])
    there["near"] = OnDisk(True, frozenset({3}))
    assert fetches(FOUR, FOUR, there, range(4)) == ({(AGENT, "far"): [2], ("near", "cloud"): [3]}, [])


def test_the_owner_of_a_shared_block_needs_the_owners_state_and_sharers_any():
    there = {AGENT: OnDisk(True), "far": OnDisk(True), "near": OnDisk(True)}
    assert fetches(DIVIDED, DIVIDED, there, range(2)) == ({}, [])
    swapped = reassign_worker(DIVIDED, "near", "far")
    assert fetches(DIVIDED, swapped, there, range(2)) == ({("near", "far"): [1]}, [])
    del there["near"]
    assert fetches(DIVIDED, swapped, there, range(2))[1] == [1]
    there["far"] = OnDisk(True, frozenset({1}))
    assert fetches(DIVIDED, swapped, there, range(2)) == ({}, [])


FACTS = ModelFacts(tuple(BlockFacts(f"b{index}") for index in range(4)))


@pytest.mark.parametrize("lost", TRAINERS)
@pytest.mark.parametrize("successor", [AGENT, *TRAINERS])
def test_a_successor_has_the_tiles_of_both_in_as_few_as_that_takes(lost, successor):
    if lost == successor:
        return
    after = reassign_worker(FOUR, lost, successor)
    check(after, FACTS, Permissions())
    assert (after.version, after.workers) == (1, FOUR.workers)
    assert held_blocks(after, lost) == ()
    assert set(held_blocks(after, successor)) == {*held_blocks(FOUR, successor), *held_blocks(FOUR, lost)}
    ordered = [AGENT, *TRAINERS]
    adjacent = abs(ordered.index(lost) - ordered.index(successor)) == 1
    assert len(after.tiles_of(successor)) == (1 if adjacent else 2)


def test_samples_that_are_one_stretch_are_joined_and_others_refused():
    after = reassign_worker(DIVIDED, "near", "far")
    assert after.tiles_of("far") == (Tile("far", 1, 2, WHOLE),)
    assert after.owner(1) == "far"
    apart = Placement(
        0,
        1,
        9,
        (AGENT, "near", "far"),
        (Tile("near", 0, 1, Rows(0, 3)), Tile(AGENT, 0, 1, Rows(3, 6)), Tile("far", 0, 1, Rows(6, 9))),
        (Source(AGENT, Rows(0, 9)),),
        {0: AGENT},
    )
    with pytest.raises(ConfigError, match=r"samples \[0, 3\) and \[6, 9\) of block 0 are no one stretch"):
        reassign_worker(apart, "near", "far")


def test_the_loss_and_the_codecs_go_along():
    codecs = {Route("near", "far", Cargo.FEATURE): "fp16", Route("far", "cloud", Cargo.FEATURE): "uniform8"}
    after = reassign_worker(chain(1, 2, 3, 4, labels=frozenset({"cloud"}), codecs=codecs), "cloud", "far")
    assert after.labels == {"far"}
    assert after.codecs == {Route("near", "far", Cargo.FEATURE): "fp16"}
    after = reassign_worker(chain(1, 2, 3, 4, codecs=codecs), "far", "cloud")
    assert after.codecs == {Route("near", "cloud", Cargo.FEATURE): "fp16"}
