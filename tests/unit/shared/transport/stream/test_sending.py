"""Sending over a link: the size of pieces, the bytes under way, and the pace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.transport.stream.credits import LEAST_CHUNK_BYTES, LEAST_GAIN, MOST_GAIN, QUEUE_SECONDS, allowance
from shared.transport.stream.link_rate import LinkRate

RATES = st.floats(2, 10).map(lambda exponent: 10**exponent)
MIB = 1 << 20


class Known(LinkRate):
    """A link of which exactly this is known."""

    def __init__(self, rate: float | None, loop: float = 0.04, queue: float = 0.0, *, draining: bool = False) -> None:
        super().__init__()
        self.bits_per_second, self.queue_seconds = rate, queue
        self.loop_seconds = loop
        self._draining_since = 1.0 if draining else None


def test_an_unknown_link_allows_nothing_in_particular():
    assert allowance(Known(None), MIB) is None


@given(RATES, st.floats(0, 1), st.floats(0, 10), st.booleans(), st.integers(1024, 4 * MIB))
def test_the_bytes_under_way_stay_within_their_bounds(rate, loop, queue, draining, largest):
    allowed = allowance(Known(rate, loop, queue, draining=draining), largest)
    assert min(LEAST_CHUNK_BYTES, largest) <= allowed.chunk_bytes <= largest
    assert LEAST_GAIN * rate <= allowed.bits_per_second <= MOST_GAIN * rate * 1.000001
    kept = max(rate / 8 * QUEUE_SECONDS, 2 * allowed.chunk_bytes)
    assert 0 <= allowed.window_bytes <= MOST_GAIN * rate / 8 * loop + kept + allowed.chunk_bytes + 1


@given(RATES, st.floats(0, 1))
def test_the_window_keeps_the_link_full_and_no_more_than_the_queue_that_is_kept(rate, loop):
    allowed = allowance(Known(rate, loop, queue=1e9), MIB)
    product, kept = rate / 8 * loop, max(rate / 8 * QUEUE_SECONDS, 2 * allowed.chunk_bytes)
    assert product + 2 * allowed.chunk_bytes <= allowed.window_bytes <= product + kept + allowed.chunk_bytes


def test_on_twenty_megabits_and_forty_milliseconds_about_two_products_are_under_way():
    allowed = allowance(Known(20e6, 0.04, QUEUE_SECONDS * 1.5), MIB)
    assert 1.5 * 100_000 < allowed.window_bytes < 2.5 * 100_000


@given(RATES, st.floats(0, 1), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_the_longer_the_queue_the_slower(rate, loop, queues):
    short, long = (allowance(Known(rate, loop, queue), MIB) for queue in sorted(queues))
    assert long.bits_per_second <= short.bits_per_second
    assert long.window_bytes <= short.window_bytes


@given(RATES, st.floats(0, 1), st.floats(0, 1))
def test_a_queue_that_is_to_drain_is_not_fed(rate, loop, queue):
    assert allowance(Known(rate, loop, queue, draining=True), MIB).window_bytes <= rate / 8 * loop


def test_both_sides_of_the_queue_that_is_kept():
    rate = 20e6
    kept = QUEUE_SECONDS * rate / 8
    seconds = max(kept, 2 * LEAST_CHUNK_BYTES) * 8 / rate
    assert allowance(Known(rate, queue=seconds), MIB).bits_per_second == pytest.approx(rate)
    assert allowance(Known(rate, queue=seconds * 0.99), MIB).bits_per_second > rate
    assert allowance(Known(rate, queue=seconds * 1.01), MIB).bits_per_second < rate
