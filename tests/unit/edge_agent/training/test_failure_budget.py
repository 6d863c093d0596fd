"""The number of failures that a run survives, by the step it had reached."""

import pytest

from edge_agent.training.failure_budget import FailureBudget
from shared.errors import ProtocolError, RefusedError, SessionLostError, UnreachableError

REFUSAL, BROKEN = RefusedError("no"), ProtocolError("what is this")


@pytest.mark.parametrize("begun_step", [5, 8])
def test_a_second_refusal_at_the_same_steps_ends_the_run_whatever_is_under_way(begun_step):
    budget = FailureBudget()
    budget.count(REFUSAL, 5, begun_step)
    with pytest.raises(RefusedError):
        budget.count(REFUSAL, 5, begun_step)


@pytest.mark.parametrize("begun_step", [5, 8])
def test_failures_are_forgotten_once_all_steps_that_were_under_way_are_done(begun_step):
    budget, beyond = FailureBudget(), max(begun_step, 6)
    for _ in range(3):
        budget.count(BROKEN, 5, begun_step)
    with pytest.raises(ProtocolError):
        budget.count(BROKEN, beyond - 1, begun_step)
    budget.count(REFUSAL, beyond, beyond)
    with pytest.raises(RefusedError):
        budget.count(REFUSAL, beyond, beyond)


def test_lost_links_count_for_nothing():
    budget = FailureBudget()
    for _ in range(100):
        budget.count(UnreachableError("away"), 5, 5)
        budget.count(SessionLostError("restarted"), 5, 5)
