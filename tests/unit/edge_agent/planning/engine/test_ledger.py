"""The ledger: proofs, regrets, and the remaining loss that it allows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.planning.engine import EngineConfig
from edge_agent.planning.engine.ledger import Ledger
from tests.support.examples import examples

HOME, OTHER = 0, 1
WAY = np.array([0.0, 5.0])
REMAINING_STEPS = 1000.0


def fed(ledger, seconds, speeds_at):
    """Feed it second by second with home's work. Returns the gain that it saw in the other place at each."""
    gains = []
    for second in range(seconds):
        speeds = np.array(speeds_at(second), dtype=np.float64)
        ledger.record(1.0, speeds, int(speeds[HOME]), is_at_home=True)
        gains.append(float(ledger.gains(WAY, REMAINING_STEPS)[OTHER]))
    return gains


def test_a_steady_lead_is_proven_after_the_time_of_proof_and_not_before():
    gains = fed(Ledger(EngineConfig(), HOME, 2), 400, lambda _: (4, 6))
    first = next(second for second, gain in enumerate(gains) if gain > 0.0)
    assert 300 <= first < 390


@given(period=st.integers(2, 300), better=st.integers(1, 20), begins_better=st.booleans())
@settings(max_examples=examples(50), deadline=None, derandomize=True)
def test_a_candidate_that_an_oscillation_favours_no_more_than_home_is_never_proven(period, better, begins_better):
    def speeds(second):
        phase = second % (period // 2 * 2) < period // 2
        return (20, 20 + better) if phase == begins_better else (20, 20 - better)

    # A lead is forgotten slowly, so an earlier lead shrinks by less than a later lag takes away.
    assert max(fed(Ledger(EngineConfig(), HOME, 2), 1500, speeds)) <= 0.0


def test_a_lead_that_a_dip_interrupts_stands():
    def speeds(second):
        return (0, 0) if second % 100 < 30 else (4, 6)

    gains = fed(Ledger(EngineConfig(), HOME, 2), 500, speeds)
    assert gains[-1] > 0.0


@pytest.mark.parametrize(("other_speed", "is_proven"), [(4.5, False), (6.0, True)])
def test_a_lead_must_win_back_what_the_account_is_overdrawn_by(other_speed, is_proven):
    ledger = Ledger(EngineConfig(), HOME, 2)
    ledger.record(30.0, np.array([4.0, other_speed]), 0, is_at_home=False)
    assert ledger.available_steps(REMAINING_STEPS) < 0.0
    gains = fed(ledger, 1500, lambda _: (4, other_speed))
    assert max(gains[:400]) <= 0.0
    assert (max(gains) > 0.0) is is_proven
    assert max(fed(Ledger(EngineConfig(), HOME, 2), 1500, lambda _: (4, other_speed))) > 0.0


@pytest.mark.parametrize(("seconds", "is_regretted"), [(19, False), (21, True)])
def test_a_deployment_is_regretted_once_home_would_have_won_the_way_back_twice(seconds, is_regretted):
    ledger = Ledger(EngineConfig(memory_seconds=1e9), HOME, 2)
    for _ in range(seconds):
        ledger.record(1.0, np.array([4.0, 2.0]), 2, is_at_home=False)
    assert ledger.regrets(OTHER, 5.0) is is_regretted


def test_measuring_is_paid_for_with_the_steps_that_home_would_have_done():
    ledger = Ledger(EngineConfig(), HOME, 2)
    fed(ledger, 100, lambda _: (4, 6))
    before = ledger.available_steps(REMAINING_STEPS)
    ledger.charge(0.5)
    assert ledger.available_steps(REMAINING_STEPS) == pytest.approx(before - 2.0)
    ledger.forget_wait()
    assert ledger.available_steps(REMAINING_STEPS) == pytest.approx(before - 2.0), "it is no wait for a step"


def test_the_account_with_another_trainer_begins_with_the_debts_of_the_one_before():
    ledger = Ledger(EngineConfig(), 0, 2)
    ledger.record(10.0, np.array([1.0, 1.0]), 2.0, is_at_home=False)
    owed_steps = ledger.available_steps(100.0)
    ledger.begin(1, 5)
    assert ledger.available_steps(100.0) == owed_steps < 0.0
    ledger.forget_wait()
    assert ledger.available_steps(100.0) == owed_steps
