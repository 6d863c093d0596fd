"""A group of devices equals micro-batches in the order of ranks, bit for bit, whoever comes first and whoever is lost."""

import copy
import random

import pytest
import torch
from torch import nn

from benchmarks.support.in_process_group import InProcessGroup
from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_weights import GroupWeights
from shared.errors import ProtocolError
from shared.execution.blocks import Method
from shared.execution.in_process_session import InProcessSession
from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.placement import BlockSlice
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import LossHead
from tests.support.crossed import crossed, seeds
from tests.support.group_members import (
    SAMPLES,
    STEPS,
    accumulated,
    assert_equal,
    batches,
    copies,
    micro_batches,
    with_a_cut,
)
from tests.support.grouped import (
    OPTIMIZERS,
    Limited,
    Log,
    LostError,
    alone,
    give_step,
    grouped,
    part_of,
)
from tests.support.placed import CPU, INPUTS, built, chain_of, recipe
from tests.support.plain import plain_loop

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("size", "optimizer"), crossed([2, 1, 3], OPTIMIZERS))
def test_members_equal_micro_batches_by_rank(optimizer, size):
    module, told = built("dropping"), recipe(optimizer)
    _, members, chain = grouped(module, told, size, copies(4))
    members.train(STEPS, {rank: batches(rank) for rank in range(size)})
    assert_equal(chain.module.state_dict(), micro_batches(module, told, size))


@pytest.mark.first_case
@pytest.mark.parametrize("clip", ["block", "model"])
@pytest.mark.parametrize("placement", [copies, with_a_cut])
def test_the_group_clips_what_all_have_given(placement, clip):
    module, told = built("dropping"), recipe("adam", 0.1, clip=clip)
    _, members, chain = grouped(module, told, 3, placement(4))
    members.train(STEPS, {rank: batches(rank) for rank in range(3)})
    assert_equal(chain.module.state_dict(), micro_batches(module, told, 3))


def test_one_member_is_the_plain_loop():
    for name, blocks in (("dropping", 4), ("normed", 3)):
        module, told = built(name), recipe("adamw", 0.5, clip="model")
        _, members, chain = grouped(module, told, 1, copies(blocks))
        members.train(STEPS, {0: batches(0)})
        plain = [(step, *batch) for step, batch in enumerate(batches(0))]
        assert_equal(chain.module.state_dict(), plain_loop(chain_of(copy.deepcopy(module)), told, plain))


@pytest.mark.parametrize("placement", [copies, with_a_cut])
def test_members_count_by_their_labels_where_the_mean_is_that_of_tokens(placement):
    """A member without any that counts adds nothing; a step in which nobody has one leaves the weights to their momentum."""
    module, told = built("dropping"), recipe("adam", mean="token")
    members = [list(batches(rank, short=(1, 3))) for rank in range(3)]
    for step, nothing in ((0, ()), (1, (2,)), (2, (0, 1)), (3, (0, 1, 2))):
        for rank, of_rank in enumerate(members):
            of_rank[step][1][rank:] = -100
            if rank in nothing:
                of_rank[step][1][:] = -100
    _, running, chain = grouped(module, told, 3, placement(4))
    running.train(STEPS, {rank: iter(of_rank) for rank, of_rank in enumerate(members)})
    expected = accumulated(chain_of(copy.deepcopy(module)), told, [iter(each) for each in members], SAMPLES)
    assert_equal(chain.module.state_dict(), expected)


def test_shorter_batches_count_by_their_samples():
    module, told = built("dropping"), recipe("sgd")
    _, members, chain = grouped(module, told, 3, copies(4))
    members.train(STEPS, {rank: batches(rank, short=(1, 4)) for rank in range(3)})
    assert_equal(chain.module.state_dict(), micro_batches(module, told, 3, short=(1, 4)))


def test_batches_of_an_update_are_summed_before_it():
    module, told = built("dropping"), recipe("sgd", accumulate_batches=2)
    _, members, chain = grouped(module, told, 1, copies(4))
    members.train(4, {0: batches(0, 4)})
    plain = [(step, *batch) for step, batch in enumerate(batches(0, 4))]
    assert_equal(chain.module.state_dict(), plain_loop(chain_of(copy.deepcopy(module)), told, plain))


def test_statistics_become_the_mean_of_the_members():
    module, told = built("normed"), recipe("sgd")
    _, members, chain = grouped(module, told, 2, copies(3))
    members.train(1, {rank: batches(rank, 1) for rank in range(2)})
    alone = []
    for rank in range(2):
        own = copy.deepcopy(module).train()
        own(next(batches(rank))[0])
        alone.append(own[0][1].running_mean)
    mean = torch.stack(alone).to(torch.float64).mul(SAMPLES).sum(0).div(2 * SAMPLES).to(torch.float32)
    assert torch.equal(chain.module[0][1].running_mean, mean)


def test_a_group_is_one_batch_of_all_members_in_float64():
    def wide():
        with random_state("weights"):
            return nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, 3)).double()

    told, steps, example = recipe("sgd"), 30, torch.zeros(8, INPUTS, dtype=torch.float64)
    chain = build_chain(wide(), example)
    groups = {"near": Group(GroupWeights(HeldBlocks(chain, told, CPU, range(3))), range(3))}

    def member(_rank, give):
        chains = {worker: build_chain(wide(), example) for worker in ("edge", "near")}
        return InProcessSession(chains, copies(3), told, Method(LossHead(told.loss, None)), CPU, give)

    def doubled(rank):
        return ((inputs.double(), labels) for inputs, labels in batches(rank, steps))

    InProcessGroup(groups, member).train(steps, {rank: doubled(rank) for rank in range(3)})
    of_all = [list(doubled(rank)) for rank in range(3)]
    joined = [(step, *map(torch.cat, zip(*parts, strict=True))) for step, parts in enumerate(zip(*of_all, strict=True))]
    expected = plain_loop(build_chain(wide(), example), told, joined)
    for name, value in expected.items():
        assert (chain.module.state_dict()[name] - value).abs().max() <= 1e-12, name


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_everybody_ends_with_the_same_weights(staleness):
    module, told = built("dropping"), recipe("sgd")
    groups, members, chain = grouped(module, told, 2, copies(4, staleness), staleness=staleness)
    members.train(STEPS, {rank: batches(rank) for rank in range(2)})
    assert (groups["near"].step, groups["near"].missing()) == (STEPS, [0, 1])
    for block in range(4):
        for name, value in chain.blocks[block].named_parameters().items():
            for rank in range(2):
                assert torch.equal(members.member(rank).weights("edge", block)[f"parameter/{name}"], value)


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("clip", ["block", "model"])
def test_no_order_of_arrival_changes_a_bit(seed, clip):
    """Each rank gives its blocks in order, from the last to the first; the dice say whose comes next, and who gives again."""
    dice = random.Random(seed)
    told = recipe("adam", 0.1, clip=clip)

    def run(choose):
        chain = chain_of(built("dropping"))
        group = Group(GroupWeights(HeldBlocks(chain, told, CPU, range(4))), range(3))
        left = {rank: [(step, block) for step in range(3) for block in (3, 2, 1, 0)] for rank in range(3)}
        given: dict[int, int] = dict.fromkeys(range(3), 0)
        while any(given[rank] < 12 for rank in left):
            rank, is_lost = choose([rank for rank in left if given[rank] < min(4 * (group.step + 1), 12)])
            if is_lost:
                given[rank] = 4 * group.take_seat(rank)
                continue
            step, block = left[rank][given[rank]]
            group.merge(rank, step, BlockSlice(block), part_of(chain, block, rank + step / 7 - block / 3), rank + 1)
            given[rank] += 1
        return chain.module.state_dict()

    in_turns = run(lambda ranks: (ranks[0], False))
    assert_equal(run(lambda ranks: (dice.choice(ranks), dice.random() < 0.2)), in_turns)


@pytest.mark.first_case
@pytest.mark.parametrize(("trainers", "lost_after"), crossed([("near", "far"), ("near",), ("a", "b", "c")], range(12)))
def test_a_member_that_lost_all_begins_again_and_nothing_changes(lost_after, trainers):
    module, told, steps = built("dropping"), recipe("adam", 0.1), 3
    groups, members, chain = grouped(module, told, 2, copies(4, trainers=trainers))
    of_rank_0 = members.member(0).training(0, steps, batches(0, steps))
    limited = Limited(groups.values(), 1, lost_after)
    of_rank_1 = members.member(1).training(0, steps, batches(1, steps))
    with pytest.raises(LostError):
        members.run([of_rank_0, of_rank_1])
    limited.stop()
    first = members.begin_again(1)
    assert first == min(group.step for group in groups.values()) == lost_after // 4
    members.run([of_rank_0, members.member(1).training(first, steps, batches(1, steps, first))])
    assert_equal(chain.module.state_dict(), micro_batches(module, told, 2, steps=steps))


@pytest.mark.first_case
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", ["dropping", "normed"])
def test_blocks_spread_over_trainers_end_as_at_one(name, size):
    module, told = built(name), recipe("adamw", 0.5)
    blocks = len(chain_of(module).blocks)
    _, at_one, one = grouped(module, told, size, copies(blocks))
    _, at_two, two = grouped(module, told, size, copies(blocks, trainers=("near", "far")))
    for members in (at_one, at_two):
        members.train(STEPS, {rank: batches(rank) for rank in range(size)})
    assert_equal(two.module.state_dict(), one.module.state_dict())


@pytest.mark.parametrize("staleness", [1, 2])
def test_members_of_several_trainers_that_are_ahead_end_with_the_same_weights(staleness):
    module, told = built("dropping"), recipe("sgd")
    placement = copies(4, staleness, ("near", "far"))
    _, members, chain = grouped(module, told, 2, placement, staleness=staleness)
    members.train(STEPS, {rank: batches(rank) for rank in range(2)})
    for block in range(4):
        for name, value in chain.blocks[block].named_parameters().items():
            for rank in range(2):
                assert torch.equal(members.member(rank).weights("edge", block)[f"parameter/{name}"], value)


def test_the_first_weights_of_a_step_are_kept_until_it_ends():
    group, chain = alone(1)
    before = chain.module.state_dict()["3.weight"].clone()
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert torch.equal(group.first_weights(0, 0)[3]["parameter/3.weight"], before)
    assert not torch.equal(chain.module.state_dict()["3.weight"], before)


def test_the_first_weights_of_the_last_step_are_kept_until_this_one_updates():
    group, chain = alone(1)
    before = group.first_weights(0, 0)[0]
    give_step(group, chain, 0, 0)
    after = group.first_weights(0, 1)[0]
    assert not all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert_equal(group.first_weights(0, 0)[0], before)
    group.merge(0, 1, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert_equal(group.first_weights(0, 0)[0], after)


def test_a_step_is_told_before_anybody_has_its_last_weights():
    log = Log()
    group, chain = alone(1, listener=log)
    for block in (3, 2, 1):
        group.merge(0, 0, BlockSlice(block), part_of(chain, block, 1.0), 2)
    assert log.steps == []
    group.merge(0, 0, BlockSlice(0), part_of(chain, 0, 1.0), 2)
    assert log.steps == [1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((0, 0, 9, 1.0, 2), "training does not change that block"),
        ((0, 1, 3, 1.0, 2), "nobody is so far from it"),
        ((0, 0, 3, 1.0, 0), "of 0 samples"),
        ((0, 0, 3, float("nan"), 2), "weight holds numbers that are not finite"),
        ((0, 0, 3, float("inf"), 2), "not finite"),
    ],
)
def test_what_may_not_come_is_refused_and_changes_nothing(given, sentence):
    rank, step, block, value, samples = given
    group, chain = alone()
    with pytest.raises(ProtocolError, match=sentence):
        group.merge(rank, step, BlockSlice(block), part_of(chain, min(block, 3), value), samples)
    for rank in (0, 1):
        give_step(group, chain, rank, 0)
    assert group.step == 1


def test_a_gradient_is_given_once():
    group, chain = alone()
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="has given it before"):
        group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 5.0), 2)


def test_a_member_is_ahead_by_its_staleness_and_no_more():
    group, chain = alone(staleness=1)
    give_step(group, chain, 0, 0)
    give_step(group, chain, 0, 1)
    with pytest.raises(ProtocolError, match="K = 1"):
        group.merge(0, 2, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="has begun"):
        group.leave(0, 1)


@pytest.mark.parametrize("has_given", [0, 2])
def test_a_group_passes_over_a_member_until_it_begins_again(has_given):
    log = Log()
    group, chain = alone(listener=log)
    for block in (3, 2)[:has_given]:
        group.merge(1, 0, BlockSlice(block), part_of(chain, block, 1.0), 2)
    give_step(group, chain, 0, 0)
    assert group.missing() == [1]
    assert {merged.rank for merged in group.pass_over(1)} == {0}
    give_step(group, chain, 0, 1)
    assert (group.step, group.missing()) == (2, [0])
    assert group.take_seat(1) == 2
    group.first_weights(1, 2)
    give_step(group, chain, 0, 2)
    assert (group.step, group.missing()) == (2, [1])
    give_step(group, chain, 1, 2)
    assert group.step == 3
    assert log.ranks[0, BlockSlice(0)] == (0,)
    assert log.ranks[0, BlockSlice(3)] == ((0, 1) if has_given else (0,))
    assert log.ranks[2, BlockSlice(0)] == (0, 1)
