"""The cause of a decision: the one link or worker whose change explains it, in words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import Question, Rates, conditions_of
from edge_agent.planning.engine.cause import cause_of
from tests.support.planning.cases import MBIT, pair
from tests.support.planning.engine_cases import LIGHT, SPACE

QUESTION = Question(LIGHT, SPACE)
LAYOUTS = pair(1, 3, 32), pair(3, 3, 8)
UNKNOWN = conditions_of(LIGHT)
BEFORE = conditions_of(LIGHT, {LIGHT.names: Rates(8 * MBIT, 8 * MBIT)})


def changed(uplink=None, downlink=None, trip=None, factors=(1.0, 1.0)):
    """Conditions once these have changed, of links in Mbit/s and seconds."""
    rates, trips, now = BEFORE.rates.copy(), BEFORE.trips.copy(), BEFORE.factors.copy()
    rates[0, 1] = BEFORE.rates[0, 1] if uplink is None else uplink * MBIT
    rates[1, 0] = BEFORE.rates[1, 0] if downlink is None else downlink * MBIT
    trips[0, 1] = BEFORE.trips[0, 1] if trip is None else trip
    now[:] = factors
    return replace(BEFORE, rates=rates, trips=trips, factors=now)


def cause(now, before=BEFORE, least_effect=0.05, measured_again=()):
    return cause_of(QUESTION, LAYOUTS, before, now, least_effect, measured_again)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (
            changed(uplink=1.0),
            "the link from edge to trainer has 1 Mbit/s up, 8 down (before: 8 Mbit/s up, 8 down)",
        ),
        (changed(trip=20.0), "8 down, 20000.0 ms there and back (before: 8 Mbit/s up, 8 down)"),
        (changed(factors=(3.0, 1.0)), "edge computes 3 times as long as before"),
        (changed(factors=(1.0, 40.0)), "trainer computes 40 times as long as before"),
        (changed(), "it is better on links and workers as they are, though none has changed much"),
    ],
)
def test_the_one_change_is_named_with_both_figures(now, says):
    assert says in cause(now)


@given(mbit=st.floats(0.1, 2.0), slower=st.floats(1.0, 1.2))
def test_of_two_changes_the_one_that_changes_a_step_more_is_named(mbit, slower):
    assert cause(changed(uplink=mbit, factors=(slower, slower))).startswith("the link from edge to trainer")


@given(mbit=st.floats(0.1, 2.0))
def test_a_link_that_is_good_again_both_ways_is_named(mbit):
    slow = changed(uplink=mbit, downlink=mbit)
    assert cause(BEFORE, slow).startswith("the link from edge to trainer has 8 Mbit/s up, 8 down (before: ")


def test_a_link_of_which_nothing_was_known_is_named_as_such():
    assert cause(BEFORE, UNKNOWN) == "the link from edge to trainer has 8 Mbit/s up, 8 down (before: not known)"


def test_times_that_were_measured_again_are_the_cause_where_nothing_else_is():
    assert cause(changed(), measured_again={"trainer", "edge"}) == "the times of edge and trainer were measured again"
    assert cause(changed(uplink=1.0), measured_again={"edge"}).startswith("the link")


def test_a_link_of_some_kilobits_is_not_shown_as_none():
    assert "has 0.004 Mbit/s up" in cause(changed(uplink=0.004))


def test_a_change_that_matters_less_than_is_asked_is_not_named():
    now = changed(uplink=7.8)
    assert "though none" in cause(now)
    assert "7.8 Mbit/s up" in cause(now, least_effect=0.0)
