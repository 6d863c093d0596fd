"""A member is late once a step has waited for it longer than steps take, and waited for no longer after a bounded time."""

import pytest

from cloud_trainer.groups.step_watch import LEAST_SECONDS, STEPS_LONG, LateMembers


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
