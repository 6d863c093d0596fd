"""Members of a group that are left out of updates, or leave."""

import random
from collections import Counter

import pytest
import torch

from shared.errors import ProtocolError
from shared.placement import BlockSlice
from tests.support.crossed import crossed, seeds
from tests.support.group_members import (
    STEPS,
    assert_equal,
    batches,
    copies,
    micro_batches,
)
from tests.support.grouped import (
    Log,
    alone,
    give_step,
    grouped,
    part_of,
    train_in_any_order,
)
from tests.support.placed import built, recipe


@pytest.mark.first_case
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
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert (group.held_up(), group.missing()) == ([BlockSlice(3)], [0, 1])
    group.leave_out(0, BlockSlice(3))
    for block in (2, 1, 0):
        group.merge(0, 0, BlockSlice(block), part_of(chain, block, 1.0), 2)
    give_step(group, chain, 0, 1)
    assert (group.step, group.missing()) == (2, [0])
    (late,) = group.merge(1, 0, BlockSlice(3), part_of(chain, 3, 5.0), 2)
    assert (log.late, log.left_out) == (Counter({1: 1}), Counter({1: 8}))
    assert_equal(late.weights, group.first_weights(0, 1)[3])
    group.merge(0, 2, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert group.held_up() == [BlockSlice(3)], "it is there again"


def test_nobody_is_left_out_of_a_step_that_is_done_or_a_block_that_waits_for_all():
    log = Log()
    group, chain = alone(listener=log, leaves_out=True)
    group.leave_out(0, BlockSlice(3))
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    group.leave_out(1, BlockSlice(3))
    assert (group.held_up(), log.left_out) == ([BlockSlice(3)], Counter())


def test_nobody_waits_for_a_member_after_the_last_step_that_it_has_told():
    group, chain = alone()
    assert not group.leave(1, 1)
    for rank in (0, 1):
        give_step(group, chain, rank, 0)
    assert (group.step, group.ranks, group.staying) == (1, {0: 0}, {0: 0})
    assert [(one.rank, one.step) for one in give_step(group, chain, 0, 1)] == [(0, 1)] * 4
    with pytest.raises(ProtocolError, match="takes no part"):
        group.merge(1, 2, BlockSlice(3), part_of(chain, 3, 1.0), 2)
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
        group.merge(rank, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
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
                group.merge(rank, step, BlockSlice(block), part_of(chain, block, 1.0), 2)
    assert group.step == 4
    assert group.leave(1, 2) == [], "it has left, and is not in the steps after that"
    assert group.missing() == [0]


def test_a_member_that_was_left_out_beyond_its_last_step_has_left_where_the_group_is():
    group, chain = alone(leaves_out=True)
    for step in range(3):
        group.merge(0, step, BlockSlice(3), part_of(chain, 3, 1.0), 2)
        group.leave_out(step, BlockSlice(3))
        for block in (2, 1, 0):
            group.merge(0, step, BlockSlice(block), part_of(chain, block, 1.0), 2)
    group.leave(1, 1)
    assert (group.step, group.ranks) == (3, {0: 0})
    group.merge(1, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert group.missing() == [0], "it is late with what it still owes, and nobody waits for it"


@pytest.mark.first_case
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


def test_a_group_ends_between_two_steps_and_forgets_what_was_given_of_later_ones():
    group, chain = alone(staleness=1)
    for rank in (0, 1):
        give_step(group, chain, rank, 0)
    assert group.promise(2, 1) == 1
    give_step(group, chain, 1, 1)
    for step in (0, 2):
        with pytest.raises(ProtocolError, match=f"cannot end before step {step}; it is at step 1"):
            group.end(step)
    before = group.first_weights(0, 1)
    assert group.end(1) == [1], "only this one is further"
    assert (group.step, group.ranks, group.held_up()) == (1, {0: 0, 1: 0}, [])
    for block, weights in group.first_weights(1, 1).items():
        assert_equal(weights, before[block])


def test_a_group_of_which_a_slice_is_updated_does_not_end_before_that_step():
    group, chain = alone()
    for rank in (0, 1):
        group.merge(rank, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    with pytest.raises(ProtocolError, match="cannot end before step 0"):
        group.end(0)
