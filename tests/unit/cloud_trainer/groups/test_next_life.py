"""A group goes back where all its members say the same, as long as their sessions are there."""

from itertools import permutations
from types import SimpleNamespace

import pytest

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups import next_life
from cloud_trainer.groups.lives import Life, Position
from cloud_trainer.groups.next_life import GoingBack, NextLives
from cloud_trainer.groups.refusals import NotNowError

BACK, FURTHER_BACK = GoingBack(0, 4), GoingBack(0, 0)


LOST = Position(0, 0, ())
"""The position at a trainer that has begun again with nothing."""


class Nothing:
    """The store of a trainer without checkpoints."""

    async def names(self):
        return []

    def unfinished(self, members):
        return sorted(members)


class Seats:
    """Seats of three ranks, of which some are linked and some have another session by now."""

    def __init__(self):
        self.attached, self.gone = [], []
        self.of = [SimpleNamespace(rank=rank) for rank in range(3)]

    def holds(self, seat):
        return seat not in self.gone


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(next_life, "time", clock)
    return clock


def judge(seats, leave_out_seconds=None, **more):
    config = GroupConfig(**{"name": "line", "size": 3, "leave_out_seconds": leave_out_seconds} | more)
    return NextLives(config, Nothing(), seats, None)


def test_all_have_to_say_the_same():
    seats = Seats()
    said = judge(seats)
    assert said.lacking(seats.of[0], BACK, [0, 1, 2]) == [1, 2]
    assert said.lacking(seats.of[1], BACK, [0, 1, 2]) == [2]
    assert said.lacking(seats.of[2], FURTHER_BACK, [0, 1, 2]) == [0, 1]
    assert said.lacking(seats.of[2], BACK, [0, 1, 2]) == []


def test_a_word_is_worth_nothing_once_its_session_is_gone_or_the_group_is_in_another_life():
    seats = Seats()
    said = judge(seats)
    said.lacking(seats.of[1], BACK, [0, 1])
    seats.gone.append(seats.of[1])
    assert said.lacking(seats.of[0], BACK, [0, 1]) == [1]
    seats.gone.clear()
    assert said.lacking(seats.of[0], BACK, [0, 1]) == []
    said.forget_words()
    assert said.lacking(seats.of[1], BACK, [0, 1]) == [0]


@pytest.mark.parametrize(("leave_out_seconds", "waits"), [(None, True), (3.0, False)])
def test_a_group_that_leaves_out_late_members_waits_no_longer_for_the_word_of_those_who_are_away(
    leave_out_seconds, waits, clock
):
    seats = Seats()
    seats.attached = [2]
    said = judge(seats, leave_out_seconds)
    said.lacking(seats.of[0], BACK, [0, 1, 2])
    clock.now += 2.9
    assert said.lacking(seats.of[0], BACK, [0, 1, 2]) == [1, 2]
    clock.now += 0.2
    assert said.lacking(seats.of[0], BACK, [0, 1, 2]) == ([1, 2] if waits else [2])
    seats.attached = []
    assert said.lacking(seats.of[0], BACK, [0, 1, 2]) == ([1, 2] if waits else [])


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
async def test_a_group_of_which_a_trainer_has_lost_all_begins_again_also_with_a_member_that_has_joined(order):
    seats, joined_at, could_only_join = Seats(), {0: 0, 1: 0, 2: 5}, 2
    said = judge(seats, size=2, most=3)
    merging = SimpleNamespace(life=Life(1, None, 0, 8, joined_at), step=4, staying=joined_at)
    *first, last = order
    for rank in first:
        with pytest.raises(NotNowError, match="have to say so, too"):
            await said.decided(merging, [LOST], seats.of[rank])
    if last == could_only_join:
        with pytest.raises(NotNowError, match="can join then"):
            await said.decided(merging, [LOST], seats.of[last])
        last = 0  # a member that is refused asks again
    following = await said.decided(merging, [LOST], seats.of[last])
    assert (following.life.number, following.life.first_step, following.life.members) == (2, 0, joined_at)
