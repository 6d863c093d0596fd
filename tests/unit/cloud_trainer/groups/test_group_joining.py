"""Members that join a group, or come back to it: no trainer does a step without them from the one on that all agree on."""

import random

import pytest
import torch

from shared import slicing
from shared.placement import BlockSlice
from shared.training import slices
from tests.support.crossed import crossed, seeds
from tests.support.group_members import assert_equal, batches, copies, micro_batches
from tests.support.grouped import alone, give_step, grouped, part_of
from tests.support.placed import built, recipe

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 8
NEWCOMER = 2


class Joiner:
    """A rank that asks one trainer after the other, tells all of them the latest step, and begins when they are there."""

    def __init__(self, rank, groups, members):
        self.rank, self._groups, self._members = rank, groups, members
        self._promised = {}
        self.first = None
        """The step from which on it takes part."""
        self.has_begun = False

    def go_on(self):
        """Do the next thing that can be done; returns what the member is to do once it has begun."""
        unasked = [name for name in self._groups if name not in self._promised]
        if unasked:
            self._promised[unasked[0]] = self._groups[unasked[0]].promise(self.rank, self._groups[unasked[0]].step)
        elif self.first is None:
            self.first = max(self._promised.values())
            self._members.join(self.rank, self.first)
        elif not self.has_begun and all(group.step >= self.first for group in self._groups.values()):
            self.has_begun = True
            assert self._members.begin_again(self.rank) == self.first
            running = self._members.member(self.rank)
            return running.training(self.first, STEPS, batches(self.rank, STEPS, self.first))
        return None


def run(dice, members, running, joiner, leave=()):
    """Have the dice say who goes on, until all is done. leave: a rank and its last step, told at some time."""
    untold = dict([leave] if leave else [])
    while running:
        if untold and dice.random() < 0.3:
            rank, last = untold.popitem()
            members.leave(rank, last + 1)
        if dice.random() < 0.6 and (begun := joiner.go_on()) is not None:
            running[joiner.rank] = begun
        rank = dice.choice(sorted(running))
        if rank not in untold and next(running[rank], running) is running:
            del running[rank]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("trainers", "seed", "clip", "leaves"),
    crossed([("near", "far"), ("near",), ("a", "b", "c")], range(6), ["block", "model"], [False, True]),
)
def test_a_rank_that_joins_counts_from_the_step_on_that_all_trainers_can_wait_for(leaves, seed, trainers, clip):
    """The dice say who goes on, when the newcomer asks whom, and when another member tells its last step."""
    assert_joined(
        random.Random(seed), recipe("adam", 0.1, clip=clip if len(trainers) == 1 else "block"), trainers, leaves
    )


@pytest.mark.parametrize("seed", seeds(10))
def test_a_rank_that_joins_counts_in_every_slice_from_the_same_step_on(seed, monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 64)
    monkeypatch.setattr(slices, "UNIT", 8)
    assert_joined(random.Random(seed), recipe("adam"), ("near", "far"), leaves=bool(seed % 2))


def assert_joined(dice, told, trainers, leaves):
    """Have a rank join, and another one leave, when the dice say so, and compare the end with that of the loop."""
    module = built("dropping")
    groups, members, chain = grouped(module, told, 2, copies(4, trainers=trainers))
    last = dice.randrange(2, STEPS - 1) if leaves else STEPS - 1
    stops = {0: STEPS, 1: last + 1}
    running = {rank: members.member(rank).training(0, stops[rank], batches(rank, STEPS)) for rank in range(2)}
    joiner = Joiner(NEWCOMER, groups, members)
    run(dice, members, running, joiner, (1, last) if leaves else ())
    assert joiner.has_begun
    assert 0 <= joiner.first < STEPS

    def took_part(step, _):
        return [rank for rank in range(3) if (step <= last if rank == 1 else rank == 0 or step >= joiner.first)]

    assert_equal(chain.module.state_dict(), micro_batches(module, told, 3, steps=STEPS, took_part=took_part))


@pytest.mark.parametrize("trainers", [("near",), ("near", "far")])
def test_a_member_that_has_left_comes_back(trainers):
    module, told = built("dropping"), recipe("adam", 0.1)
    groups, members, chain = grouped(module, told, 2, copies(4, trainers=trainers))
    members.leave(1, 2)
    running = [members.member(rank).training(0, 2 if rank else 4, batches(rank, STEPS)) for rank in range(2)]
    members.run(running)
    assert {group.promise(1, 4) for group in groups.values()} == {4}
    members.join(1, 4)
    assert members.begin_again(1) == 4
    members.train(STEPS, {rank: batches(rank, STEPS, 4) for rank in range(2)})
    expected = micro_batches(module, told, 2, steps=STEPS, took_part=lambda step, _: (0,) if step in (2, 3) else (0, 1))
    assert_equal(chain.module.state_dict(), expected)


@pytest.mark.parametrize("staleness", [1, 2])
def test_everybody_ends_with_the_same_weights_where_members_may_be_ahead(staleness):
    module, told = built("dropping"), recipe("sgd")
    groups, members, chain = grouped(module, told, 2, copies(4, staleness, ("near", "far")), staleness=staleness)
    running = {rank: members.member(rank).training(0, STEPS, batches(rank, STEPS)) for rank in range(2)}
    joiner = Joiner(NEWCOMER, groups, members)
    run(random.Random(staleness), members, running, joiner)
    assert joiner.has_begun
    for block in range(4):
        for name, value in chain.blocks[block].named_parameters().items():
            for rank in range(3):
                assert torch.equal(members.member(rank).weights("edge", block)[f"parameter/{name}"], value)


def test_no_step_from_the_promised_one_on_is_done_without_the_rank_until_the_promise_lapses():
    group, chain = alone(1)
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    assert group.promise(1, 0) == 1, "the present step has begun without it"
    for block in (2, 1, 0):
        group.merge(0, 0, BlockSlice(block), part_of(chain, block, 1.0), 2)
    assert not give_step(group, chain, 0, 1)
    assert (group.step, group.missing(), group.ranks, group.staying) == (1, [1], {0: 0}, {0: 0})
    assert [(one.rank, one.step) for one in group.withdraw(1)] == [(0, 1)] * 4
    assert (group.step, group.missing()) == (2, [0])
    assert not group.withdraw(0), "a member is never withdrawn"
    assert group.ranks == {0: 0}


def test_a_step_that_has_begun_waits_for_nobody_else():
    group, chain = alone(1)
    assert group.promise(1, 0) == 0
    group.withdraw(1)
    give_step(group, chain, 0, 0)
    assert group.join(1, 0) is None
    assert (group.ranks, group.missing()) == ({0: 0}, [0])
    assert group.join(1, 2) == []
    assert (group.ranks, group.promise(1, 1)) == ({0: 0, 1: 2}, 2), "it joins where it has said, and not before"
    give_step(group, chain, 0, 1)
    assert group.promise(1, 2) is None, "it can begin there"
    assert group.missing() == [0, 1]


def test_nobody_waits_for_a_member_that_joins_again_in_the_steps_before():
    group, chain = alone()
    give_step(group, chain, 0, 0)
    assert {one.rank for one in group.join(1, 1)} == {0}
    assert (group.step, group.ranks) == (1, {0: 0, 1: 1})


def test_a_promise_moves_with_a_group_that_has_left_the_rank_out():
    group, chain = alone(1, leaves_out=True)
    assert group.promise(1, 0) == 0
    group.merge(0, 0, BlockSlice(3), part_of(chain, 3, 1.0), 2)
    group.leave_out(0, BlockSlice(3))
    assert group.promise(1, 0) == 1
