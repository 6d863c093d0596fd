"""A caller gets its burst, then its steady rate, and never more in any stretch of time."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.transport.auth.rate import BURST_SECONDS, RateLimit


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@given(per_second=st.floats(0.2, 50), pauses=st.lists(st.floats(0, 3), max_size=60))
def test_no_stretch_of_time_has_more_calls_than_a_burst_and_the_rate_allow(per_second, pauses):
    clock = Clock()
    limit = RateLimit(per_second, clock)
    admitted = []
    for pause in pauses:
        clock.now += pause
        for _ in range(5):
            if not limit.take("a"):
                admitted.append(clock.now)
    capacity = max(1.0, per_second * BURST_SECONDS)
    for first, start in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= capacity + per_second * (admitted[last] - start) + 1e-6


@given(per_second=st.floats(0.2, 50))
def test_a_caller_is_admitted_after_the_wait_it_was_told_and_no_sooner(per_second):
    clock = Clock()
    limit = RateLimit(per_second, clock)
    while not (wait := limit.take("a")):
        pass
    assume(wait > 1e-6)  # below this, rounding of sums decides
    start = clock.now
    clock.now = start + wait * 0.99
    assert limit.take("a") > 0
    clock.now = start + wait * 1.001
    assert limit.take("a") == 0
    assert limit.take("a") > 0


def test_callers_do_not_share_a_bucket():
    limit = RateLimit(0.1, Clock())
    assert limit.take("a") == 0
    assert limit.take("a") == pytest.approx(10)
    assert limit.take("b") == 0


def test_of_many_callers_only_the_latest_are_remembered():
    limit = RateLimit(0.001, Clock())
    for number in range(10_000):
        limit.take(str(number))
    assert limit.take("5000") == 0, "who has not been here for long begins again"
    assert limit.take("9999") > 0, "who was here last is remembered"
