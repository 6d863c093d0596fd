"""The overlap of a step is the part of what links carried that the step did not wait for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.observability.overlap import Overlap

SECONDS = st.integers(0, 100)


def overlap_of(carried, exposed_seconds):
    overlap = Overlap()
    for begin, end in carried:
        overlap.carry(begin, end)
    return overlap.end_step(exposed_seconds)


@pytest.mark.parametrize(
    ("carried", "exposed_seconds", "expected"),
    [
        ([], 1.0, None),
        ([(0.0, 4.0)], 0.0, 1.0),
        ([(0.0, 4.0)], 1.0, 0.75),
        ([(0.0, 4.0)], 4.0, 0.0),
        ([(0.0, 4.0)], 9.0, 0.0),
        ([(0.0, 3.0), (1.0, 4.0)], 1.0, 0.75),
        ([(0.0, 1.0), (2.0, 5.0)], 1.0, 0.75),
    ],
)
def test_what_passes_beside_another_message_counts_once(carried, exposed_seconds, expected):
    assert overlap_of(carried, exposed_seconds) == expected


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1), SECONDS)
def test_seconds_in_which_anything_was_carried_count(spans, exposed_seconds):
    carried = [(min(span), max(span)) for span in spans]
    seconds = sum(1 for second in range(100) if any(begin <= second < end for begin, end in carried))
    expected = pytest.approx(max(0.0, 1.0 - exposed_seconds / seconds)) if seconds else None
    assert overlap_of(carried, exposed_seconds) == expected


def test_a_step_counts_nothing_of_the_one_before():
    overlap = Overlap()
    overlap.carry(0.0, 4.0)
    assert overlap.end_step(0.0) == 1.0
    assert overlap.end_step(0.0) is None
    overlap.carry(3.0, 6.0)
    assert overlap.end_step(1.0) == 0.5
    overlap.carry(6.0, 9.0)
    overlap.forget()
    assert overlap.end_step(0.0) is None
