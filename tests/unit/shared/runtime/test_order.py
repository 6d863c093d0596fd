"""The order in which a worker has computed, as its reports tell it."""

from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.order import MOST_NUMBERS, ComputedOrder, segments_of


@given(
    st.integers(1, 4).flatmap(lambda count: st.tuples(st.just(count), st.lists(st.integers(0, count - 1), min_size=1)))
)
def test_the_reports_restore_the_order(case):
    segments, computed = case
    order = ComputedOrder(segments)
    for segment in computed:
        order.note(segment)
    assert list(segments_of(order.take(), segments)) == computed
    order.note(0)
    assert list(segments_of(order.take(), 1)) == [0], "each report begins where the one before has ended"


@given(st.integers(1, 5))
def test_each_segment_once_in_turn_needs_no_words(segments):
    order = ComputedOrder(segments)
    for segment in range(segments):
        order.note(segment)
    assert not order.take()


def test_no_report_grows_without_bound():
    order = ComputedOrder(2)
    for number in range(4 * MOST_NUMBERS):
        order.note(number % 2)
    assert len(order.take()) <= MOST_NUMBERS
