"""The pace of a run, computed from the times of its steps."""

import pytest

from benchmarks.chain.pace import layouts, seconds_per_step, seconds_to_reach, steps_per_second
from benchmarks.support.live import Layout, Moment

ONE, OTHER = (Layout(("edge", "near"), (cut,), ("fp32",)) for cut in (1, 2))


def moments(*seconds: float, layout: Layout = ONE) -> list[Moment]:
    return [Moment(second, step, layout) for step, second in enumerate(seconds, 1)]


def test_a_step_counts_where_it_ends():
    assert steps_per_second(moments(1.0, 2.0, 3.0, 4.0), 1.0, 3.0) == 1.0
    assert steps_per_second(moments(1.0, 2.0, 3.0, 4.0), 5.0, 7.0) == 0.0


def test_a_stretch_begins_where_the_one_before_ended():
    assert seconds_per_step(moments(0.0, 1.0, 2.0, 5.0, 8.0, 9.0), 2) == [1.0, 3.0]
    assert seconds_per_step(moments(0.0, 1.0), 2) == []


def test_a_goal_is_reached_at_the_end_of_the_first_window_that_has_it():
    slow_then_quick = moments(*range(1, 11), *(10 + tenth / 10 for tenth in range(1, 41)))
    assert seconds_to_reach(slow_then_quick, 4.0, 9.5, 2.0) == pytest.approx(7.8)
    assert seconds_to_reach(slow_then_quick, 4.0, 11.0, 2.0) is None


def test_a_window_reaches_no_further_back_than_the_change():
    quick_then_slow = moments(*(tenth / 10 for tenth in range(1, 41)), *range(5, 20))
    assert seconds_to_reach(quick_then_slow, 4.0, 5.0, 2.0) is None


def test_a_layout_is_found_where_it_begins():
    seen = [*moments(1.0, 2.0), *moments(3.0, 4.0, layout=OTHER), *moments(5.0)]
    assert layouts(seen) == [(1.0, ONE), (3.0, OTHER), (5.0, ONE)]
    assert layouts([]) == []
