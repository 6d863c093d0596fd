"""The number of failures that a run survives, by the step it had reached."""

import pytest

from edge_agent.training.attempts import Attempts
from shared.errors import ProtocolError, RefusedError, SessionLostError, UnreachableError

REFUSAL, BROKEN = RefusedError("no"), ProtocolError("what is this")


@pytest.mark.parametrize("begun_step", [5, 8])
def test_a_second_refusal_at_the_same_steps_ends_the_run_whatever_is_under_way(begun_step):
    attempts = Attempts()
    attempts.count(REFUSAL, 5, begun_step)
    with pytest.raises(RefusedError):
        attempts.count(REFUSAL, 5, begun_step)


@pytest.mark.parametrize("begun_step", [5, 8])
def test_failures_are_forgotten_once_all_steps_that_were_under_way_are_done(begun_step):
    attempts, beyond = Attempts(), max(begun_step, 6)
    for _ in range(3):
        attempts.count(BROKEN, 5, begun_step)
    with pytest.raises(ProtocolError):
        attempts.count(BROKEN, beyond - 1, begun_step)
    attempts.count(REFUSAL, beyond, beyond)
    with pytest.raises(RefusedError):
        attempts.count(REFUSAL, beyond, beyond)


def test_lost_links_count_for_nothing():
    attempts = Attempts()
    for _ in range(100):
        attempts.count(UnreachableError("away"), 5, 5)
        attempts.count(SessionLostError("restarted"), 5, 5)
