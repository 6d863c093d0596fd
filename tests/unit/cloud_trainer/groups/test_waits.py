"""Blocks of a group wait for late members so long and no longer, each from its own first gradient on.

A member is late once a step has waited for it longer than steps take, and waited for no longer after a bounded time.
"""

import pytest

from cloud_trainer.groups.waits import LEAST_SECONDS, STEPS_LONG, LateMembers, Waits


def test_each_block_waits_from_the_time_when_it_was_noted_first():
    waits = Waits(5.0)
    assert waits.seconds_left(0.0) is None
    waits.note(3, [1], 10.0)
    waits.note(3, [1, 0], 12.0)
    assert (waits.seconds_left(13.0), waits.over(14.0)) == (2.0, [])
    assert waits.over(15.0) == [(3, 1)]
    assert waits.seconds_left(16.0) == 0.0


def test_a_block_that_waits_no_more_waits_anew_at_the_next_step():
    waits = Waits(5.0)
    waits.note(3, [1], 10.0)
    waits.note(4, [1], 14.0)
    assert (waits.over(15.0), waits.over(19.0)) == ([], [(4, 1)])
    waits.note(5, [], 20.0)
    assert waits.seconds_left(20.0) is None


def test_without_a_bound_nothing_is_ever_over():
    waits = Waits(None)
    waits.note(0, [0], 0.0)
    assert (waits.seconds_left(1e9), waits.over(1e9)) == (None, [])


@pytest.fixture
def late():
    return LateMembers(3600.0)


def test_who_is_awaited_for_some_seconds_is_late_once_and_until_the_step_is_done(late):
    assert late.look(7, [1], {}, 100.0) == []
    assert late.look(7, [1], {}, 99.9 + LEAST_SECONDS) == []
    assert late.look(7, [1, 2], {}, 100.0 + LEAST_SECONDS) == [1, 2]
    assert late.look(7, [1], {}, 101.0 + LEAST_SECONDS) == []
    assert late.since == {1: 100.0}
    assert late.look(8, [1], {}, 102.0 + LEAST_SECONDS) == []
    assert not late.since


@pytest.mark.parametrize(("steps", "seconds"), [(1, 30.0), (3, 10.0)])
def test_long_steps_make_patient(steps, seconds, late):
    late.look(0, [], {}, 0.0)
    now = seconds * steps
    late.look(steps, [1], {}, now)
    assert late.look(steps, [1], {}, now + STEPS_LONG * seconds - 0.1) == []
    assert late.look(steps, [1], {}, now + STEPS_LONG * seconds) == [1]


def test_who_begins_in_the_middle_of_a_step_is_awaited_from_then_on(late):
    late.look(7, [1], {}, 100.0)
    assert late.look(7, [1], {1: 105.0}, 100.0 + LEAST_SECONDS) == []
    assert late.look(7, [1], {1: 105.0}, 105.0 + LEAST_SECONDS) == [1]


@pytest.mark.parametrize("longest", [2.0, 60.0])
def test_nobody_is_waited_for_longer_than_the_operator_says(longest):
    late = LateMembers(longest)
    late.look(7, [1], {}, 100.0)
    late.look(7, [1], {}, 100.0 + longest)
    assert (late.over(99.9 + longest), late.over(100.0 + longest)) == ([], [1])


def test_nobody_is_late_in_a_group_that_does_not_train(late):
    late.look(7, [1], {}, 100.0)
    late.look(7, [1], {}, 200.0)
    late.forget()
    assert late.look(7, [1], {}, 201.0) == []
