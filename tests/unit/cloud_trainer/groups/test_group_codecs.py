"""Gradients and weights of a group in fewer bits."""

import copy
import random
from functools import partial

import pytest
import torch

from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_weights import GroupWeights
from shared.execution.shared_blocks import CodedWeights
from shared.placement import BlockSlice
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import states_in
from shared.training.state_file import serialize
from tests.support.crossed import crossed, seeds
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
from tests.support.grouped import (
    OPTIMIZERS,
    Limited,
    Log,
    LostError,
    alone,
    grouped,
    members_of,
    part_of,
    train_in_any_order,
)
from tests.support.placed import CPU, built, chain_of, recipe


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("codec", "trainers"),
    crossed(["uniform8", "uniform2", "fp16", "mbq3", "uniform4-channel"], [("near",), ("near", "far")]),
)
def test_what_a_codec_takes_from_a_gradient_goes_with_the_next_one(codec, trainers):
    module, told, placed = built("dropping"), recipe("adam"), copies(4, trainers=trainers, up=codec)
    _, members, chain = grouped(module, told, 2, placed)
    members.train(STEPS, {rank: batches(rank) for rank in range(2)})
    expected = micro_batches(module, told, 2, codecs=PlainCodecs(codec))
    assert_equal(chain.module.state_dict(), expected)
    plain = micro_batches(module, told, 2)
    assert any(not torch.equal(expected[name], plain[name]) for name in plain), "the codec loses something"


def test_a_member_that_begins_again_has_nothing_left_of_its_codec():
    module, told = built("dropping"), recipe("adam")
    _, members, chain = grouped(module, told, 2, copies(4, up="uniform2"))
    members.train(2, {rank: batches(rank) for rank in range(2)})
    assert members.begin_again(1) == 2
    members.train(STEPS, {rank: batches(rank, first=2) for rank in range(2)})
    assert_equal(
        chain.module.state_dict(),
        micro_batches(module, told, 2, codecs=PlainCodecs("uniform2", lost=[(1, 2)])),
    )


DOWN = ["uniform8", "fp16", "uniform2", "mbq3", "topk1"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("optimizer", "coded"),
    crossed(OPTIMIZERS, [(2, "uniform8", "fp16"), (1, "raw", "uniform8"), (3, "raw", "uniform2")]),
)
def test_members_lack_what_a_codec_loses_of_weights_until_the_next_step(optimizer, coded):
    size, up, down = coded
    module, told = built("dropping"), recipe(optimizer)
    _, members, chain = grouped(module, told, size, copies(4, up=up, down=down))
    members.train(STEPS, {rank: batches(rank) for rank in range(size)})
    expected = micro_batches(module, told, size, codecs=PlainCodecs(up, down=down))
    for rank in range(size):
        assert_equal(weights_at(members.member(rank), module), expected)
    assert any(not torch.equal(expected[name], value) for name, value in chain.module.state_dict().items())


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("model", "down"),
    crossed(
        [("dropping", copies), ("normed", partial(copies, trainers=("near", "far"))), ("dropping", with_a_cut)], DOWN
    ),
)
def test_members_have_one_model_by_every_codec_and_at_every_placement(model, down):
    name, placement = model
    module, told = built(name), recipe("adam", 0.1)
    blocks = len(chain_of(module).blocks)
    placed = placement(blocks, down=down)
    groups, members, _ = grouped(module, told, 2, placed)
    members.train(STEPS, {rank: batches(rank) for rank in range(2)})
    lent = {block: weights for group in groups.values() for block, weights in group.first_weights(0, STEPS).items()}
    for rank in range(2):
        session = members.member(rank)
        for block, weights in lent.items():
            for worker in {placed.owner(block), *(tile.worker for tile in placed.holders(block))}:
                assert_equal(session.weights(worker, block), weights)
    if name == "dropping":
        found = {key.partition("/")[2]: value for weights in lent.values() for key, value in weights.items()}
        assert_equal(found, micro_batches(module, told, 2, codecs=PlainCodecs(down=down)))


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("trainers", [("near",), ("near", "far")])
def test_members_that_may_be_ahead_have_one_model_by_a_codec(staleness, trainers):
    module, told = built("dropping"), recipe("sgd")
    placement = copies(4, staleness, trainers, up="uniform4", down="uniform3")
    groups, members, _ = grouped(module, told, 3, placement, staleness=staleness)
    members.train(STEPS, {rank: batches(rank) for rank in range(3)})
    for group in groups.values():
        for block, weights in group.first_weights(0, STEPS).items():
            for rank in range(3):
                assert_equal(members.member(rank).weights("edge", block), weights)


@pytest.mark.first_case
@pytest.mark.parametrize(("trainers", "lost_after"), crossed([("near", "far"), ("near",), ("a", "b", "c")], range(12)))
def test_a_member_that_begins_again_gets_what_the_others_have(lost_after, trainers):
    module, told, steps = built("dropping"), recipe("adam", 0.1), 3
    groups, members, _ = grouped(module, told, 2, copies(4, trainers=trainers, down="uniform2"))
    of_rank_0 = members.member(0).training(0, steps, batches(0, steps))
    limited = Limited(groups.values(), 1, lost_after)
    with pytest.raises(LostError):
        members.run([of_rank_0, members.member(1).training(0, steps, batches(1, steps))])
    limited.stop()
    first = members.begin_again(1)
    members.run([of_rank_0, members.member(1).training(first, steps, batches(1, steps, first))])
    expected = micro_batches(module, told, 2, steps=steps, codecs=PlainCodecs(down="uniform2"))
    for rank in range(2):
        assert_equal(weights_at(members.member(rank), module), expected)


@pytest.mark.first_case
@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize(("trainers", "clip"), [(("near",), "model"), (("near", "far"), "block")])
def test_a_late_member_has_what_the_others_have_once_it_is_there_again(seed, trainers, clip):
    """The dice say who goes on, and which block goes on without the others."""
    dice, log, size, steps = random.Random(seed), Log(), 3, 6
    module, told = built("dropping"), recipe("adam", 0.1, clip=clip)
    groups, members, _ = grouped(module, told, size, copies(4, trainers=trainers, down="uniform2"), log=log)
    train_in_any_order(dice, groups, members, {rank: batches(rank, steps) for rank in range(size)}, steps)
    assert log.left_out
    expected = micro_batches(
        module, told, size, steps=steps, took_part=lambda *at: log.ranks[at], codecs=PlainCodecs(down="uniform2")
    )
    for rank in range(size):
        assert_equal(weights_at(members.member(rank), module), expected)


def test_those_who_have_the_weights_before_an_update_get_the_same_bytes_and_others_all():
    group, chain = alone(down="uniform8", leaves_out=True)
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    (of_0, of_1) = group.merge(1, 0, BlockSlice(3), part_of(chain, 3, 2.0), 2)
    assert isinstance(of_0.weights, CodedWeights)
    assert of_1.weights is of_0.weights, "it is encoded once"
    group.merge(0, 0, BlockSlice(2), part_of(chain, 2, 1.0), 2)
    group.leave_out(0, BlockSlice(2))
    for step, blocks in ((0, (1, 0)), (1, (3, 2, 1, 0))):
        for block in blocks:
            group.merge(0, step, BlockSlice(block), part_of(chain, block, 1.0), 2)
            group.leave_out(step, BlockSlice(block))
    (late,) = group.merge(1, 0, BlockSlice(2), part_of(chain, 2, 1.0), 2)
    assert_equal(late.weights, group.first_weights(1, 1)[2])


def test_without_a_codec_a_group_lends_no_tensors_that_it_keeps():
    weights = GroupWeights(HeldBlocks(chain_of(built("dropping")), recipe("sgd"), CPU, range(4)))
    assert weights.of(BlockSlice(0))["parameter/0.0.weight"] is not weights.of(BlockSlice(0))["parameter/0.0.weight"]
    assert not [name for name in weights.copied() if "members" in name]


@pytest.mark.first_case
@pytest.mark.parametrize(("stopped", "trained"), crossed(range(1, STEPS), [("dropping", "adam"), ("normed", "lion")]))
def test_a_group_that_goes_on_from_a_copy_ends_as_if_nothing_had_happened(stopped, trained):
    name, optimizer = trained
    module, told = built(name), recipe(optimizer)
    placed = copies(len(chain_of(module).blocks), down="uniform2")
    _, whole, _ = grouped(module, told, 2, placed)
    whole.train(STEPS, {rank: batches(rank) for rank in range(2)})
    chain = chain_of(copy.deepcopy(module))
    weights = GroupWeights(HeldBlocks(chain, told, CPU, range(placed.blocks)), "uniform2")
    members = members_of(module, told, placed, {"near": Group(weights, range(2))})
    members.train(stopped, {rank: batches(rank) for rank in range(2)})
    states = states_in(serialize(weights.copied()))
    again = HeldBlocks(chain_of(copy.deepcopy(module)), told, CPU, range(placed.blocks))
    restored = Group(GroupWeights.restored(again, "uniform2", states), range(2), first_step=stopped)
    members = members_of(module, told, placed, {"near": restored})
    for rank in range(2):
        assert members.begin_again(rank) == stopped
    members.train(STEPS, {rank: batches(rank, first=stopped) for rank in range(2)})
    for block in range(placed.blocks):
        for rank in range(2):
            assert_equal(members.member(rank).weights("edge", block), whole.member(0).weights("edge", block))


def test_what_overflows_is_told_to_members_and_is_not_finite_for_them():
    group, chain = alone(1, down="uniform8")
    with torch.no_grad():
        chain.blocks[3].named_parameters()["3.weight"].fill_(-3e38)
    group.first_weights(0, 0)
    with torch.no_grad():
        chain.blocks[3].named_parameters()["3.weight"].fill_(3e38)
    (merged,) = group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 0.0), 2)
    assert merged.weights.weights["parameter/3.weight"].isnan().all()
