"""Workers that seem to be changing, and those whose few milliseconds change no step."""

import pytest

from edge_agent.planning.engine.devices import TOLERANCE, WINDOW_SECONDS, WINDOW_STEPS, Devices

EXPECTED = {0: 0.6, 1: 0.01}
A_WINDOW = max(int(WINDOW_SECONDS), WINDOW_STEPS)


def devices(ratio, worker, steps):
    """Two workers after so many steps of a second, in which one of them has taken `ratio` times as long as expected."""
    found = Devices(2)
    for _ in range(steps):
        found.note(1.0, 1, {**EXPECTED, worker: ratio * EXPECTED[worker]}, EXPECTED)
    return found


@pytest.mark.parametrize("steps", [1, A_WINDOW], ids=["in a window", "after one"])
def test_a_worker_that_may_be_changing_counts_by_what_it_adds_to_a_step(steps):
    for ratio in (1.5, 0.5):
        assert not devices(ratio, 0, steps).is_settled(1.0)
        assert devices(ratio, 1, steps).is_settled(1.0), "five milliseconds of a second"
        assert not devices(ratio, 1, steps).is_settled(0.04), "the same of four hundredths"


@pytest.mark.parametrize("steps", [0, 1, A_WINDOW])
@pytest.mark.parametrize("ratio", [1.0, 1.0 + TOLERANCE / 2])
def test_a_worker_within_the_tolerance_is_settled_however_short_a_step_is(steps, ratio):
    assert devices(ratio, 0, steps).is_settled(1e-6)


def test_a_small_worker_that_is_ten_times_as_slow_is_waited_for():
    assert not devices(12.0, 1, 1).is_settled(1.0)
