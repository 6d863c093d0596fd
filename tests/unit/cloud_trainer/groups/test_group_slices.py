"""A group that takes gradients slice by slice ends with the bits of one that takes blocks, whoever is late, lost or hostile."""

import copy
import random

import pytest
import torch
from torch import nn

from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_weights import GroupWeights
from shared import slicing
from shared.errors import ProtocolError
from shared.execution.block_slices import Slices
from shared.execution.shared_blocks import CodedWeights
from shared.model.random_state import random_state
from shared.placement import BlockSlice
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import states_in
from shared.training.state_file import serialize
from tests.support.crossed import crossed
from tests.support.group_members import (
    STEPS,
    PlainCodecs,
    assert_equal,
    batches,
    copies,
    micro_batches,
    weights_at,
    with_a_cut,
)
from tests.support.grouped import Limited, Log, LostError, grouped, members_of, train_in_any_order
from tests.support.placed import CLASSES, CPU, INPUTS, chain_of, recipe

pytestmark = pytest.mark.usefixtures("one_thread")
WIDE = 1
"""A block of several slices in these tests."""


def built(name):
    """Return a model whose second and third blocks are of several slices."""
    with random_state("weights"):
        between = nn.BatchNorm1d(24) if name == "normed" else nn.Dropout(0.3)
        return nn.Sequential(
            nn.Sequential(nn.Linear(INPUTS, 24), nn.Tanh()),
            nn.Sequential(nn.Linear(24, 24), between),
            nn.Sequential(nn.ReLU(), nn.Linear(24, 24)),
            nn.Linear(24, CLASSES),
        )


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 256)
    monkeypatch.setattr(slicing, "SLICES_OF_ALL", 1000)


@pytest.mark.first_case
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop", "adafactor"])
@pytest.mark.parametrize(("placement", "name"), [(copies, "dropping"), (with_a_cut, "dropping"), (copies, "normed")])
def test_slices_equal_micro_batches_by_rank(optimizer, placement, name, monkeypatch):
    module, told = built(name), recipe(optimizer)
    groups, members, chain = grouped(module, told, 2, placement(4))
    assert (len(groups["near"].slices) > 20) == (optimizer != "adafactor")
    members.train(STEPS, {rank: batches(rank) for rank in range(2)})
    found = chain.module.state_dict()
    monkeypatch.setattr(slicing, "SLICE_BYTES", 10**9)
    if name == "normed":  # the mean of statistics is no part of the loop
        _, whole, expected = grouped(module, told, 2, placement(4))
        whole.train(STEPS, {rank: batches(rank) for rank in range(2)})
        assert_equal(found, expected.module.state_dict())
    else:
        assert_equal(found, micro_batches(module, told, 2))


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("seed", "up", "down"),
    # In the run of seed 9, what the codec has left of a gradient that came too late goes with one that counts.
    crossed([9, *range(6)], ["uniform4", "raw"], ["raw", "uniform2"]),
)
def test_slices_that_go_on_without_late_ranks_equal_the_loop_that_reads_its_log(seed, up, down):
    dice, log, size, steps = random.Random(seed), Log(), 3, 5
    module, told, placement = built("dropping"), recipe("adam"), copies(4, up=up, down=down)
    groups, members, chain = grouped(module, told, size, placement, log=log)
    log.watch(groups["near"])
    train_in_any_order(dice, groups, members, {rank: batches(rank, steps) for rank in range(size)}, steps)
    assert log.left_out
    codecs = PlainCodecs(up, down=down, had_at=log.had_at)
    expected = micro_batches(module, told, size, steps=steps, took_part=lambda *at: log.ranks[at], codecs=codecs)
    for rank in range(size):
        assert_equal(weights_at(members.member(rank), module), expected)
    if down == "raw":
        assert_equal(chain.module.state_dict(), expected)


@pytest.mark.first_case
@pytest.mark.parametrize(("staleness", "trainers"), crossed([1, 2], [("near", "far"), ("near",)]))
def test_slices_of_members_that_are_ahead_end_as_whole_blocks(staleness, trainers, monkeypatch):
    module, told = built("dropping"), recipe("adam")
    ends = []
    for slice_bytes in (256, 10**9):
        monkeypatch.setattr(slicing, "SLICE_BYTES", slice_bytes)
        placement = copies(4, staleness, trainers)
        groups, members, chain = grouped(module, told, 2, placement, staleness=staleness)
        assert (len(groups["near"].slices) > 4) == (slice_bytes == 256)
        members.train(STEPS, {rank: batches(rank) for rank in range(2)})
        ends.append(chain.module.state_dict())
        for rank in range(2):
            assert_equal(weights_at(members.member(rank), module), ends[-1])
    assert_equal(*ends)


@pytest.mark.first_case
@pytest.mark.parametrize("down", ["raw", "uniform3"])
@pytest.mark.parametrize("lost_after", [3, 11, 25, 31])
def test_a_member_that_is_lost_in_the_middle_of_a_block_gets_what_the_others_have(down, lost_after):
    module, told, steps = built("dropping"), recipe("adamw"), 3
    groups, members, chain = grouped(module, told, 2, copies(4, down=down))
    of_rank_0 = members.member(0).training(0, steps, batches(0, steps))
    limited = Limited(groups.values(), 1, lost_after)
    with pytest.raises(LostError):
        members.run([of_rank_0, members.member(1).training(0, steps, batches(1, steps))])
    limited.stop()
    first = members.begin_again(1)
    members.run([of_rank_0, members.member(1).training(first, steps, batches(1, steps, first))])
    expected = micro_batches(module, told, 2, steps=steps, codecs=PlainCodecs(down=down))
    for rank in range(2):
        assert_equal(weights_at(members.member(rank), module), expected)
    if down == "raw":
        assert_equal(chain.module.state_dict(), expected)


@pytest.mark.parametrize("down", ["raw", "uniform3"])
def test_a_checkpoint_of_whole_blocks_brings_the_group_back(down):
    """Nothing on disk knows of slices: it may be read with others."""
    module, told = built("dropping"), recipe("adam")
    chain = chain_of(copy.deepcopy(module))
    weights = GroupWeights(HeldBlocks(chain, told, CPU, range(4)), down)
    groups = {"near": Group(weights, range(1))}
    members_of(module, told, copies(4, down=down), groups).train(3, {0: batches(0, 3)})
    stored = serialize(weights.copied())
    assert not any("slice" in name for state in states_in(stored).values() for name in state)
    held = HeldBlocks(chain_of(copy.deepcopy(module)), told, CPU, range(4))
    again = GroupWeights.restored(held, "raw" if down == "raw" else down, states_in(stored))
    assert_equal(held.chain.module.state_dict(), chain.module.state_dict())
    for one in groups["near"].slices:
        assert_equal(again.of(one), weights.of(one))


def slice_of(chain, one, value):
    """Return the gradient of a slice, of one value."""
    names = chain.blocks[one.block].named_parameters()
    of = Slices(chain, recipe("sgd"), merged=True)[one]
    return {f"gradient/{each.name}": torch.full_like(each.of(names[each.name].detach()), value) for each in of.ranges}


def group_of(size, staleness=0):
    chain = chain_of(built("dropping"))
    return Group(GroupWeights(HeldBlocks(chain, recipe("sgd"), CPU, range(4))), range(size), staleness), chain


def test_slices_of_a_block_may_go_on_with_other_ranks_each():
    log = Log()
    chain = chain_of(built("dropping"))
    weights = GroupWeights(HeldBlocks(chain, recipe("adam"), CPU, range(4)))
    group = Group(weights, range(2), listener=log, leaves_out=True)
    first, second = BlockSlice(WIDE), BlockSlice(WIDE, 1)
    group.merge(0, 0, first, slice_of(chain, first, 1.0), 2)
    assert group.held_up() == [first]
    group.leave_out(0, first)
    group.merge(1, 0, second, slice_of(chain, second, 1.0), 2)
    assert group.held_up() == [second]
    group.merge(0, 0, second, slice_of(chain, second, 1.0), 2)
    assert log.ranks == {(0, first): (0,), (0, second): (0, 1)}
    (late,) = group.merge(1, 0, first, slice_of(chain, first, 1.0), 2)
    assert (late.of, log.late[1]) == (first, 1)


def test_a_slice_is_updated_and_handed_out_while_others_of_its_block_are_missing():
    group, chain = group_of(2)
    one = BlockSlice(WIDE, 2)
    assert group.merge(0, 0, one, slice_of(chain, one, 1.0), 2) == []
    handed = group.merge(1, 0, one, slice_of(chain, one, 1.0), 2)
    assert [(merged.rank, merged.of) for merged in handed] == [(0, one), (1, one)]
    assert not isinstance(handed[0].weights, CodedWeights)
    assert all(tensor.dim() == 1 for tensor in handed[0].weights.values()), "a row of elements"
    assert group.missing() == [0, 1]


@pytest.mark.parametrize(
    ("step", "number", "value", "sentence"),
    [
        (0, 2, 1.0, "rank 0 gives the gradient of slice 2 of block 1 of step 0; .* and has given it before"),
        (2, 1, 1.0, "slice 1 of block 1 of step 2; the group is at step 0, and with K = 0 nobody is so far from it"),
        (0, 99, 1.0, "block 1 of step 0; .* and training does not change that block"),
        (0, 1, float("nan"), "slice 1 of block 1 of step 0; .* holds numbers that are not finite"),
    ],
)
def test_a_slice_that_may_not_come_is_refused_and_the_group_goes_on(step, number, value, sentence):
    group, chain = group_of(2)
    known = BlockSlice(WIDE, 2)
    group.merge(0, 0, known, slice_of(chain, known, 1.0), 2)
    one = BlockSlice(WIDE, number)
    part = slice_of(chain, one if number < 10 else known, value)
    with pytest.raises(ProtocolError, match=sentence):
        group.merge(0, step, one, part, 2)
    for rank in range(2):
        for each in group.slices:
            if (rank, each) != (0, known):
                group.merge(rank, 0, each, slice_of(chain, each, 1.0), 2)
    assert group.step == 1
