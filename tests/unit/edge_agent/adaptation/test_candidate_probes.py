"""Measurements of candidates: when they are due, and what they may cost."""

import math

import pytest

from edge_agent.adaptation.candidates.byte_budget import ByteBudget
from edge_agent.adaptation.candidates.probed import affordable
from edge_agent.adaptation.candidates.probes import Known, is_due


def test_a_budget_has_the_bytes_of_a_minute_and_gets_more_by_and_by():
    budget = ByteBudget(6000)
    assert budget.left(100.0) == 6000
    budget.spend(5000)
    assert budget.left(100.0) == 1000
    assert budget.left(130.0) == 4000
    assert budget.left(10_000.0) == 6000
    budget.spend(9000)
    assert budget.left(10_010.0) == 0
    assert budget.left(10_031.0) == pytest.approx(100.0)


@pytest.mark.parametrize("left", [0, 1000, 32_768, 200_000, 1e9])
def test_transfers_take_no_more_than_is_left(left):
    sizes = affordable(left)
    assert 2 * sum(sizes) <= left
    assert list(sizes) == sorted(sizes)
    assert (not sizes) == (left < 32_768)


def test_a_candidate_is_measured_at_first_after_ten_minutes_and_after_a_change_of_a_tenth():
    known = Known()
    assert is_due(known, 1000.0, math.inf)
    known.measured_seconds, known.step_seconds_then = 1000.0, None
    assert not is_due(known, 1061.0, 0.10)
    assert not is_due(known, 1062.0, 0.109)
    assert is_due(known, 1063.0, 0.111)
    assert is_due(known, 1064.0, 0.089)
    assert is_due(known, 1600.0, 0.10)


def test_however_it_changes_a_candidate_is_measured_once_a_minute_at_most():
    known = Known(measured_seconds=1000.0, step_seconds_then=0.1)
    assert not is_due(known, 1059.0, 10.0)
    assert is_due(known, 1060.0, 10.0)
