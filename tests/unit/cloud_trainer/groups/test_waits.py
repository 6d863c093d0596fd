"""Blocks of a group wait for late members so long and no longer, each from its own first gradient on."""

from cloud_trainer.groups.waits import Waits


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
