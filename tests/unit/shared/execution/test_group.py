"""A group of devices equals micro-batches in the order of ranks, bit for bit, whoever comes first and whoever is lost."""

import copy
import random
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from shared.errors import ProtocolError
from shared.execution.blocks import Method
from shared.execution.group import Group, GroupListener
from shared.execution.group_weights import GroupWeights
from shared.execution.in_process_group import InProcessGroup
from shared.execution.in_process_session import InProcessSession
from shared.execution.shared_blocks import CodedWeights
from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import states_in, to_bytes
from shared.training.losses import LossHead
from tests.support.crossed import crossed, seeds
from tests.support.group_members import (
    SAMPLES,
    STEPS,
    PlainCodecs,
    assert_equal,
    batches,
    codec_down,
    copies,
    micro_batches,
    owned_by,
    weights_at,
    with_a_cut,
)
from tests.support.placed import CPU, INPUTS, built, chain_of, recipe
from tests.support.plain import plain_loop

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion")


class Log(GroupListener):
    """The ranks whose gradients are in each update, how often others were left out or too late, and steps that were told."""

    def __init__(self):
        self.ranks, self.left_out, self.late, self.steps = {}, Counter(), Counter(), []

    def stepped(self, step):
        self.steps.append(step)

    def updated(self, step, block, ranks, left_out, _weights):
        self.ranks[step, block] = ranks
        self.left_out.update(left_out)

    def dropped(self, rank):
        self.late[rank] += 1


def grouped(module, told, size, placement, *, staleness=0, log=None):
    """Make a group of so many members, all in this process; return what each trainer has of it, the members, and the chain."""
    chain = chain_of(copy.deepcopy(module))
    groups = {
        trainer: Group(
            GroupWeights(HeldBlocks(chain, told, CPU, owned_by(trainer, placement)), codec_down(placement)),
            range(size),
            staleness,
            0,
            log,
            leaves_out=log is not None,
        )
        for trainer in dict.fromkeys(placement.owners.values())
    }

    return groups, members_of(module, told, placement, groups), chain


def members_of(module, told, placement, groups):
    """Make the members of what trainers have of a group."""

    def member(rank, give):
        chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
        how = Method(LossHead(told.loss, None), first_sample=rank * SAMPLES)
        return InProcessSession(chains, placement, told, how, CPU, give)

    return InProcessGroup(groups, member)


@pytest.mark.parametrize(("size", "optimizer"), crossed([2, 1, 3], OPTIMIZERS))
def test_members_equal_micro_batches_by_rank(optimizer, size):
    module, told = built("dropping"), recipe(optimizer)
    _, members, chain = grouped(module, told, size, copies(4))
    members.train(STEPS, {rank: batches(rank) for rank in range(size)})
    assert_equal(chain.module.state_dict(), micro_batches(module, told, size))


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


def part_of(chain, block, value):
    """Return a gradient of one value."""
    names = chain.blocks[block].named_parameters()
    return {f"gradient/{name}": torch.full_like(parameter, value) for name, parameter in names.items()}


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
            group.merge(rank, step, block, part_of(chain, block, rank + step / 7 - block / 3), rank + 1)
            given[rank] += 1
        return chain.module.state_dict()

    in_turns = run(lambda ranks: (ranks[0], False))
    assert_equal(run(lambda ranks: (dice.choice(ranks), dice.random() < 0.2)), in_turns)


@pytest.mark.parametrize(("trainers", "lost_after"), crossed([("near", "far"), ("near",), ("a", "b", "c")], range(12)))
def test_a_member_that_lost_all_begins_again_and_nothing_changes(lost_after, trainers):
    module, told, steps = built("dropping"), recipe("adam", 0.1), 3
    groups, members, chain = grouped(module, told, 2, copies(4, trainers=trainers))
    of_rank_0 = members.member(0).training(0, steps, batches(0, steps))
    limited = _Limited(groups.values(), 1, lost_after)
    of_rank_1 = members.member(1).training(0, steps, batches(1, steps))
    with pytest.raises(_LostError):
        members.run([of_rank_0, of_rank_1])
    limited.stop()
    first = members.begin_again(1)
    assert first == min(group.step for group in groups.values()) == lost_after // 4
    members.run([of_rank_0, members.member(1).training(first, steps, batches(1, steps, first))])
    assert_equal(chain.module.state_dict(), micro_batches(module, told, 2, steps=steps))


class _LostError(Exception):
    pass


class _Limited:
    """Loses a rank once its groups have taken so many gradients of it."""

    def __init__(self, groups, rank, count):
        self._groups, self._left = list(groups), count
        for group in self._groups:
            group.merge = partial(self.merge, group.merge, rank)

    def merge(self, merge, lost, rank, *given):
        if rank == lost:
            if self._left == 0:
                raise _LostError
            self._left -= 1
        return merge(rank, *given)

    def stop(self):
        for group in self._groups:
            del group.merge


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


def train_in_any_order(dice, groups, members, batches_by_rank, steps):
    """Have members do so many steps as the dice say: who goes on, and which block goes on without the others."""
    running = {rank: members.member(rank).training(0, steps, each) for rank, each in batches_by_rank.items()}
    while running:
        rank = dice.choice(sorted(running))
        if next(running[rank], running) is running:
            del running[rank]
        trainer = dice.choice(list(groups))
        if (blocks := groups[trainer].held_up()) and dice.random() < 0.3:
            members.leave_out(trainer, dice.choice(blocks))


@pytest.mark.parametrize("seed", seeds(15))
@pytest.mark.parametrize(("trainers", "clip"), [(("near",), "block"), (("near",), "model"), (("near", "far"), "block")])
def test_a_run_that_leaves_out_late_ranks_equals_the_loop_that_reads_its_log(seed, trainers, clip):
    """The dice say who goes on, and which block goes on without the others."""
    dice, log, size, steps = random.Random(seed), Log(), 3, 6
    module, told = built("dropping"), recipe("adam", 0.1, clip=clip)
    groups, members, chain = grouped(module, told, size, copies(4, trainers=trainers), log=log)
    train_in_any_order(dice, groups, members, {rank: batches(rank, steps) for rank in range(size)}, steps)
    assert log.left_out
    assert sum(map(len, log.ranks.values())) + log.left_out.total() == size * steps * 4
    assert log.left_out == log.late, "all that is left out comes in the end"
    assert_equal(
        chain.module.state_dict(), micro_batches(module, told, size, steps=steps, took_part=lambda *at: log.ranks[at])
    )


def test_a_rank_that_was_left_out_is_not_waited_for_until_it_comes():
    log = Log()
    group, chain = alone(listener=log, leaves_out=True)
    group.merge(0, 0, 3, part_of(chain, 3, 1.0), 2)
    assert (group.held_up(), group.missing()) == ([3], [0, 1])
    group.leave_out(0, 3)
    for block in (2, 1, 0):
        group.merge(0, 0, block, part_of(chain, block, 1.0), 2)
    give_step(group, chain, 0, 1)
    assert (group.step, group.missing()) == (2, [0])
    (late,) = group.merge(1, 0, 3, part_of(chain, 3, 5.0), 2)
    assert (log.late, log.left_out) == (Counter({1: 1}), Counter({1: 8}))
    assert_equal(late.weights, group.first_weights(0, 1)[3])
    group.merge(0, 2, 3, part_of(chain, 3, 1.0), 2)
    assert group.held_up() == [3], "it is there again"


def test_nobody_is_left_out_of_a_step_that_is_done_or_a_block_that_waits_for_all():
    log = Log()
    group, chain = alone(listener=log, leaves_out=True)
    group.leave_out(0, 3)
    group.merge(0, 0, 3, part_of(chain, 3, 1.0), 2)
    group.leave_out(1, 3)
    assert (group.held_up(), log.left_out) == ([3], Counter())


def alone(size=2, down="raw", **how):
    """Return a group of which tests give the gradients themselves."""
    chain = chain_of(built("dropping"))
    return Group(GroupWeights(HeldBlocks(chain, recipe("sgd"), CPU, range(4)), down), range(size), **how), chain


def give_step(group, chain, rank, step):
    """Give all gradients of a step."""
    return [
        merged for block in (3, 2, 1, 0) for merged in group.merge(rank, step, block, part_of(chain, block, 1.0), 2)
    ]


def test_nobody_waits_for_a_member_after_the_last_step_that_it_has_told():
    group, chain = alone()
    assert not group.leave(1, 1)
    for rank in (0, 1):
        give_step(group, chain, rank, 0)
    assert (group.step, group.ranks, group.staying) == (1, {0: 0}, {0: 0})
    assert [(one.rank, one.step) for one in give_step(group, chain, 0, 1)] == [(0, 1)] * 4
    with pytest.raises(ProtocolError, match="takes no part"):
        group.merge(1, 2, 3, part_of(chain, 3, 1.0), 2)
    assert group.promise(1, 2) == 2, "it would have to join"


def test_a_member_that_begins_again_before_its_last_step_is_done_stays():
    group, chain = alone()
    group.leave(1, 1)
    give_step(group, chain, 0, 0)
    assert group.take_seat(1) == 0
    give_step(group, chain, 1, 0)
    assert (group.staying, group.missing()) == ({0: 0, 1: 0}, [0, 1])


def test_no_member_leaves_before_a_step_of_which_a_block_has_its_gradient():
    group, chain = alone()
    for rank in (0, 1):
        group.merge(rank, 0, 3, part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="rank 1 is to leave the group before step 0, which has begun"):
        group.leave(1, 0)
    assert group.staying == {0: 0, 1: 0}


def test_a_member_that_leaves_can_say_so_again_and_leave_earlier_and_never_later():
    group, chain = alone()
    for step in (3, 3, 2):
        group.leave(1, step)
    with pytest.raises(ProtocolError, match="before step 3, and has said before step 2; it can only leave earlier"):
        group.leave(1, 3)
    for step in range(4):
        for block in (3, 2, 1, 0):
            for rank in (0, 1)[: 1 + (step < 2)]:
                group.merge(rank, step, block, part_of(chain, block, 1.0), 2)
    assert group.step == 4
    assert group.leave(1, 2) == [], "it has left, and is not in the steps after that"
    assert group.missing() == [0]


def test_a_member_that_was_left_out_beyond_its_last_step_has_left_where_the_group_is():
    group, chain = alone(leaves_out=True)
    for step in range(3):
        group.merge(0, step, 3, part_of(chain, 3, 1.0), 2)
        group.leave_out(step, 3)
        for block in (2, 1, 0):
            group.merge(0, step, block, part_of(chain, block, 1.0), 2)
    group.leave(1, 1)
    assert (group.step, group.ranks) == (3, {0: 0})
    group.merge(1, 0, 3, part_of(chain, 3, 1.0), 2)
    assert group.missing() == [0], "it is late with what it still owes, and nobody waits for it"


@pytest.mark.parametrize(
    ("trainers", "seed", "clip"),
    crossed([("near",), ("near", "far"), ("a", "b", "c")], range(5), ["block", "model"]),
)
def test_members_that_leave_are_in_no_update_after_their_last_step(seed, trainers, clip):
    """The dice say when each leaves, and who goes on."""
    dice, size = random.Random(seed), 3
    module, told = built("dropping"), recipe("adam", 0.1, clip=clip if len(trainers) == 1 else "block")
    _, members, chain = grouped(module, told, size, copies(4, trainers=trainers))
    last = {0: STEPS - 1, 1: dice.randrange(STEPS - 1), 2: dice.randrange(STEPS - 1)}
    running = {rank: members.member(rank).training(0, last[rank] + 1, batches(rank)) for rank in range(size)}
    untold = {1, 2}
    while running:
        if untold and dice.random() < 0.5:
            members.leave(rank := untold.pop(), last[rank] + 1)
        rank = dice.choice(sorted(running))
        if rank not in untold and next(running[rank], running) is running:
            del running[rank]
    expected = micro_batches(
        module, told, size, took_part=lambda step, _: [rank for rank in last if step <= last[rank]]
    )
    assert_equal(chain.module.state_dict(), expected)


@pytest.mark.parametrize("staleness", [1, 2])
def test_those_who_stay_end_with_the_same_weights_where_they_may_be_ahead(staleness):
    module, told = built("dropping"), recipe("sgd")
    groups, members, chain = grouped(module, told, 3, copies(4, staleness), staleness=staleness)
    members.leave(1, 2)
    running = [members.member(rank).training(0, 2 if rank == 1 else STEPS, batches(rank)) for rank in range(3)]
    members.run(running)
    assert groups["near"].step == STEPS
    for block in range(4):
        for name, value in chain.blocks[block].named_parameters().items():
            for rank in (0, 2):
                assert torch.equal(members.member(rank).weights("edge", block)[f"parameter/{name}"], value)


def test_the_first_weights_of_a_step_are_kept_until_it_ends():
    group, chain = alone(1)
    before = chain.module.state_dict()["3.weight"].clone()
    group.merge(0, 0, 3, part_of(chain, 3, 1.0), 2)
    assert torch.equal(group.first_weights(0, 0)[3]["parameter/3.weight"], before)
    assert not torch.equal(chain.module.state_dict()["3.weight"], before)


def test_the_first_weights_of_the_last_step_are_kept_until_this_one_updates():
    group, chain = alone(1)
    before = group.first_weights(0, 0)[0]
    give_step(group, chain, 0, 0)
    after = group.first_weights(0, 1)[0]
    assert not all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert_equal(group.first_weights(0, 0)[0], before)
    group.merge(0, 1, 3, part_of(chain, 3, 1.0), 2)
    assert_equal(group.first_weights(0, 0)[0], after)


def test_a_step_is_told_before_anybody_has_its_last_weights():
    log = Log()
    group, chain = alone(1, listener=log)
    for block in (3, 2, 1):
        group.merge(0, 0, block, part_of(chain, block, 1.0), 2)
    assert log.steps == []
    group.merge(0, 0, 0, part_of(chain, 0, 1.0), 2)
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
        group.merge(rank, step, block, part_of(chain, min(block, 3), value), samples)
    for rank in (0, 1):
        give_step(group, chain, rank, 0)
    assert group.step == 1


def test_a_gradient_is_given_once():
    group, chain = alone()
    group.merge(0, 0, 3, part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="has given it before"):
        group.merge(0, 0, 3, part_of(chain, 3, 5.0), 2)


def test_a_member_is_ahead_by_its_staleness_and_no_more():
    group, chain = alone(staleness=1)
    give_step(group, chain, 0, 0)
    give_step(group, chain, 0, 1)
    with pytest.raises(ProtocolError, match="K = 1"):
        group.merge(0, 2, 3, part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="has begun"):
        group.leave(0, 1)


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


@pytest.mark.parametrize(("trainers", "lost_after"), crossed([("near", "far"), ("near",), ("a", "b", "c")], range(12)))
def test_a_member_that_begins_again_gets_what_the_others_have(lost_after, trainers):
    module, told, steps = built("dropping"), recipe("adam", 0.1), 3
    groups, members, _ = grouped(module, told, 2, copies(4, trainers=trainers, down="uniform2"))
    of_rank_0 = members.member(0).training(0, steps, batches(0, steps))
    limited = _Limited(groups.values(), 1, lost_after)
    with pytest.raises(_LostError):
        members.run([of_rank_0, members.member(1).training(0, steps, batches(1, steps))])
    limited.stop()
    first = members.begin_again(1)
    members.run([of_rank_0, members.member(1).training(first, steps, batches(1, steps, first))])
    expected = micro_batches(module, told, 2, steps=steps, codecs=PlainCodecs(down="uniform2"))
    for rank in range(2):
        assert_equal(weights_at(members.member(rank), module), expected)


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
    group.merge(0, 0, 3, part_of(chain, 3, 1.0), 2)
    (of_0, of_1) = group.merge(1, 0, 3, part_of(chain, 3, 2.0), 2)
    assert isinstance(of_0.weights, CodedWeights)
    assert of_1.weights is of_0.weights, "it is encoded once"
    group.merge(0, 0, 2, part_of(chain, 2, 1.0), 2)
    group.leave_out(0, 2)
    for step, blocks in ((0, (1, 0)), (1, (3, 2, 1, 0))):
        for block in blocks:
            group.merge(0, step, block, part_of(chain, block, 1.0), 2)
            group.leave_out(step, block)
    (late,) = group.merge(1, 0, 2, part_of(chain, 2, 1.0), 2)
    assert_equal(late.weights, group.first_weights(1, 1)[2])


def test_without_a_codec_a_group_lends_no_tensors_that_it_keeps():
    weights = GroupWeights(HeldBlocks(chain_of(built("dropping")), recipe("sgd"), CPU, range(4)))
    assert weights.of(0)["parameter/0.0.weight"] is not weights.of(0)["parameter/0.0.weight"]
    assert not [name for name in weights.copied() if "members" in name]


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
    states = states_in(to_bytes(weights.copied()))
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
    (merged,) = group.merge(0, 0, 3, part_of(chain, 3, 0.0), 2)
    assert merged.weights.weights["parameter/3.weight"].isnan().all()
