"""Experts: the times of their moves, the costs of these, and the steps that they would have done."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.planning.engine.experts import RULES, Expert, Rule
from tests.support.examples import examples

QUICK = Rule(memory_seconds=0.01, payback_seconds=30.0)
ANYWHERE = np.array([True, True])
SERIAL = np.array([0, 0])


def ways(seconds):
    """Return the same seconds for a move to either of two candidates."""
    return lambda index: np.where(np.arange(2) == index, 0.0, seconds)


def played(expert, speeds, way_seconds, allowed=ANYWHERE):
    """Play an expert, and return the steps and the place in each second. speeds: of two candidates by second."""
    done = [
        (expert.play(1.0, np.array(each, dtype=np.float64), allowed, ways(way)), expert.index)
        for each, way in zip(speeds, way_seconds, strict=True)
    ]
    return [steps for steps, _ in done], [index for _, index in done]


@pytest.mark.parametrize(("way_seconds", "moves"), [(14.0, True), (16.0, False)])
def test_it_moves_where_the_way_is_worth_it_within_its_payback(way_seconds, moves):
    # 30 s at twice the speed gain 30 seconds of the old speed. A move of 15 s at the new speed costs the same.
    _, places = played(Expert(QUICK, 0, SERIAL, 0.0), [(1, 2)] * 3, [way_seconds] * 3)
    assert places[-1] == int(moves)


def test_a_move_ends_what_is_in_flight_and_does_nothing_until_the_link_has_carried_it():
    steps, places = played(Expert(QUICK, 0, SERIAL, 0.0), [(1, 4)] * 7, [2.5, 2.5, 2.5, 5.0, 5.0, 2.5, 2.5])
    assert places == [1] * 7
    # The batch in flight ends. A second then carries 0.4 of the blocks, two on a slower link 0.2 each, and half a
    # second the rest.
    assert steps == [pytest.approx(each) for each in (1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 4.0)]


def test_the_more_is_in_flight_the_later_a_move_shows():
    steps, _ = played(Expert(QUICK, 0, np.array([3, 3]), 0.0), [(1.5, 6)] * 5, [0.0] * 5)
    # Four in flight at 1.5 a second take 2 2/3 s. The rest of the third second is the new place's.
    assert steps == [pytest.approx(each) for each in (1.5, 1.5, 1.5, 1.0 + 2.0, 6.0)]


def test_between_two_moves_it_stays():
    favours = [(1, 9) if second // 2 % 2 else (9, 1) for second in range(60)]
    _, places = played(Expert(QUICK, 0, SERIAL, 5.0), favours, [0.0] * 60)
    changes = [second for second in range(1, 60) if places[second] != places[second - 1]]
    assert len(changes) > 5
    assert min(np.diff(changes)) >= 5


def test_it_moves_to_no_forbidden_place():
    _, places = played(Expert(QUICK, 0, SERIAL, 0.0), [(1, 9)] * 20, [0.0] * 20, np.array([True, False]))
    assert set(places) == {0}


@given(
    speeds=st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=60),
    way_seconds=st.floats(0.0, 20.0),
    rule=st.sampled_from(RULES),
)
@settings(max_examples=examples(100), deadline=None)
def test_it_never_does_more_than_the_fastest_nor_less_than_nothing(speeds, way_seconds, rule):
    steps, _ = played(Expert(rule, 0, SERIAL, 5.0), speeds, [way_seconds] * len(speeds))
    assert all(0.0 <= done <= max(each) * (1 + 1e-9) for done, each in zip(steps, speeds, strict=True))


def test_on_a_slow_oscillation_it_beats_every_candidate_that_stays():
    speeds = [(4, 1) if second // 60 % 2 else (1, 2) for second in range(600)]
    steps, _ = played(Expert(Rule(2.0, 30.0), 0, SERIAL, 5.0), speeds, [3.0] * 600)
    assert sum(steps) > 1.1 * max(np.sum(speeds, axis=0))
