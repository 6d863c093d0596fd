"""Pauses and paces of a handover, by the ends of steps."""

import pytest

from benchmarks.move import kept_pace, measured
from benchmarks.support.live import Layout, Moment


def moments(*gaps):
    end, ends = 0.0, []
    for gap in (0.0, *gaps):
        end += gap
        ends.append(Moment(end, len(ends), Layout((), (), ())))
    return ends


def test_a_pause_is_the_longest_step_less_a_usual_one_and_the_steps_before_it_have_their_pace():
    pause, pace = measured(moments(*[0.1] * 10, 0.2, 0.2, 1.1, 0.1), 1.05)
    assert pause == pytest.approx(1.0)
    assert pace == pytest.approx(0.5)


def test_steps_that_are_as_fast_as_before_keep_their_pace():
    assert kept_pace(moments(*[0.1] * 20), 1.05, 1.65) == pytest.approx(1.0)


def test_steps_that_end_later_do_not_count():
    assert kept_pace(moments(*[0.1] * 10, 0.2, 0.2, 5.0), 1.05, 1.5) == pytest.approx(0.5)
