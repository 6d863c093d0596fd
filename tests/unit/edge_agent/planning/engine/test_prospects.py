"""Prospects: what is measured corrects what is modelled, and out of reach is infinitely far."""

import math

import pytest

from edge_agent.planning import Question, Rates, SearchSpace
from edge_agent.planning.candidates import Candidate, ranked_candidates
from edge_agent.planning.engine.prospects import DEVICE, Place, Prospects, Today
from edge_agent.planning.families.pair import best_pairs
from tests.support.planning.cases import small_profile

NEAR = Candidate("near", Rates(1e8, 1e8, 0.01))
FAR = Candidate("far", Rates(1e8, 1e8, 0.2))


QUESTION = Question(small_profile(), SearchSpace((8, 32)))


@pytest.fixture
def prospects():
    return Prospects(best_pairs(QUESTION), 3)


def today(prospects, candidate=1, measured=None, seconds=0.0, device_factor=1.0, known=(NEAR, FAR)):
    """Training with the best layout of a candidate."""
    seen = prospects.weigh(Today(seconds, 0.0, Place(candidate, 0), None), known)
    return Today(seconds, 0.0, seen.best(candidate), measured, device_factor)


def test_without_measurements_it_is_the_ranking(prospects):
    found = prospects.weigh(today(prospects), (NEAR, FAR))
    ranked = {one.layout.workers[-1]: one.seconds_per_step for one in ranked_candidates(QUESTION, [NEAR, FAR])}
    names = [QUESTION.profile.names[0], "near", "far"]
    assert dict(zip(names, found.step_seconds, strict=True)) == pytest.approx(ranked)
    assert found.trip_seconds.tolist() == [0.0, 0.01, 0.2]


def test_a_trainer_out_of_reach_is_infinitely_slow(prospects):
    found = prospects.weigh(today(prospects), (NEAR, None))
    assert found.step_seconds[2] == math.inf
    assert found.factors[2] == math.inf
    lost = prospects.weigh(today(prospects), (None, FAR))
    assert lost.step_seconds[1] == math.inf


def test_what_training_shows_counts_today_and_the_least_error_counts_everywhere(prospects):
    modelled = prospects.weigh(today(prospects), (NEAR, FAR)).step_seconds.copy()
    found = prospects.weigh(today(prospects, measured=1.2 * modelled[1]), (NEAR, FAR)).step_seconds
    assert found == pytest.approx(1.2 * modelled)
    # It becomes slow for a reason that nobody knows: the others do not.
    found = prospects.weigh(today(prospects, measured=3.0 * modelled[1]), (NEAR, FAR)).step_seconds
    assert found == pytest.approx(modelled * [1.2, 3.0, 1.2])


def test_a_candidate_that_was_left_is_as_slow_as_it_was_for_ten_minutes(prospects):
    modelled = prospects.weigh(today(prospects), (NEAR, FAR)).step_seconds.copy()
    prospects.weigh(today(prospects, measured=3.0 * modelled[1]), (NEAR, FAR))

    def near_after(seconds):
        there = today(prospects, 2, modelled[2], seconds)
        return prospects.weigh(there, (NEAR, FAR)).step_seconds[1]

    assert near_after(500.0) == pytest.approx(3.0 * modelled[1])
    assert near_after(700.0) == pytest.approx(modelled[1])


def test_a_model_that_is_too_slow_speeds_up_nobody_else(prospects):
    modelled = prospects.weigh(today(prospects), (NEAR, FAR)).step_seconds.copy()
    found = prospects.weigh(today(prospects, measured=0.5 * modelled[1]), (NEAR, FAR)).step_seconds
    assert found == pytest.approx(modelled * [1.0, 0.5, 1.0])


def test_a_slow_device_is_slow_with_everybody(prospects):
    usual = prospects.weigh(today(prospects), (NEAR, FAR)).step_seconds
    slow = prospects.weigh(today(prospects, device_factor=3.0), (NEAR, FAR)).step_seconds
    assert slow[DEVICE] == pytest.approx(3.0 * usual[DEVICE])
    assert (slow > usual).all()


def test_pauses_are_expected_as_long_as_the_last_one_was(prospects):
    at = today(prospects)
    before = prospects.weigh(at, (NEAR, FAR))
    expected = float(before.moving_seconds[2])
    prospects.note_pause(expected, 2.0 * expected)
    after = prospects.weigh(at, (NEAR, FAR))
    assert after.moving_seconds == pytest.approx(2.0 * before.moving_seconds)
    prospects.note_pause(float(after.moving_seconds[2]), 1e9)
    assert prospects.weigh(at, (NEAR, FAR)).moving_seconds == pytest.approx(20.0 * before.moving_seconds)
