"""Admission: at most K + 1 batches in flight, no gradient more than K steps late, and never a standstill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.training.admission import Admission


@given(st.integers(0, 1000), st.integers(0, 8), st.lists(st.booleans(), max_size=200))
def test_staleness_is_never_above_the_limit(first, limit, choices):
    admission = Admission(first)
    for start in choices:
        in_flight = admission.unsettled
        assert admission.open(limit) == (in_flight <= limit)
        if start and admission.open(limit):
            assert admission.start() == first
            first += 1
        elif in_flight:
            assert 0 <= admission.settle(admission.settled) <= limit
        assert 0 <= admission.unsettled <= limit + 1
        assert admission.open(limit) or admission.started > admission.settled, "something can always be done"


@given(st.integers(0, 8))
def test_the_limit_is_reached(limit):
    """As late as allowed when the pipeline is kept full: a rule that allowed less would waste the link."""
    admission = Admission(0)
    for _ in range(limit + 1):
        assert admission.open(limit)
        admission.start()
    assert not admission.open(limit)
    assert admission.settle(0) == limit


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=200))
def test_a_limit_that_changes_holds_for_every_step_that_starts_under_it(choices):
    admission = Admission(0)
    limit_of = {}
    for start, limit in choices:
        if start and admission.open(limit):
            limit_of[admission.start()] = limit
            assert admission.started - admission.settled <= limit + 1
        elif admission.started > admission.settled:
            assert admission.settle(admission.settled) <= limit_of[admission.started - 1]


@given(st.integers(1, 100))
def test_without_gradients_nothing_is_stale_and_nothing_waits(count):
    admission = Admission(0)
    for _ in range(count):
        assert admission.open(None)
        admission.start()


@given(st.integers(0, 5), st.integers(-1, 7))
def test_steps_are_settled_in_order_and_only_when_in_flight(in_flight, step):
    admission = Admission(0)
    for _ in range(in_flight):
        admission.start()
    if step == 0 < in_flight:
        admission.settle(step)
    else:
        with pytest.raises(AssertionError):
            admission.settle(step)
