"""When a prediction that is off asks for one factor, and when for measuring anew."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from shared.prediction.drift import TOLERANCE, WINDOW_STEPS, Adaptation, PredictionWatch

PREDICTED = 0.05
near = st.floats(1 - 0.9 * TOLERANCE, 1 + 0.9 * TOLERANCE)
far = st.one_of(st.floats(0.05, 1 - 1.1 * TOLERANCE), st.floats(1 + 1.1 * TOLERANCE, 20.0))


def windows(watch, *ratios):
    """What each window ends with, in steps that all take this many times the first prediction."""
    answers = [[watch.observe(ratio * PREDICTED) for _ in range(WINDOW_STEPS)] for ratio in ratios]
    assert all(answer is None for window in answers for answer in window[:-1]), "only a whole window says something"
    return [window[-1] for window in answers]


@given(st.lists(near, min_size=1, max_size=20))
def test_what_stays_within_the_tolerance_asks_for_nothing(ratios):
    assert set(windows(PredictionWatch(PREDICTED), *ratios)) == {None}


@given(far, near)
def test_one_window_that_is_off_asks_for_nothing(off, good):
    assert set(windows(PredictionWatch(PREDICTED), off, good, off, good)) == {None}


@given(far)
def test_two_windows_ask_for_one_factor_which_then_holds(off):
    watch = PredictionWatch(PREDICTED)
    assert windows(watch, off, off) == [None, Adaptation.SCALE]
    assert abs(watch.ratio - off) < 1e-9 * off
    assert set(windows(watch, off, off, off)) == {None}
    assert abs(watch.ratio - 1) < 1e-9


@given(far, far)
def test_where_one_factor_did_not_do_samples_are_measured(first, second):
    watch = PredictionWatch(PREDICTED)
    assert windows(watch, first, first, first * second, first * second) == [
        None,
        Adaptation.SCALE,
        None,
        Adaptation.MEASURE,
    ]
    watch.predict(PREDICTED)
    assert windows(watch, first, first) == [None, Adaptation.SCALE], "a new prediction begins from the beginning"


def test_now_faster_and_now_slower_is_no_change_of_the_device():
    assert set(windows(PredictionWatch(PREDICTED), 0.8, 1.3, 0.8, 1.3, 0.8)) == {None}


@given(st.lists(st.floats(0.01, 10.0), min_size=WINDOW_STEPS, max_size=WINDOW_STEPS))
def test_the_ratio_is_of_the_windows_median(ratios):
    watch = PredictionWatch(PREDICTED)
    for ratio in ratios:
        watch.observe(ratio * PREDICTED)
    assert abs(watch.ratio / statistics.median(ratios) - 1) < 1e-9
