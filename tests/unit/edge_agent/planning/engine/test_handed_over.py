"""The engine of a run with its next trainer: what it knows of the device, and what it owes."""

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.planning import Engine, Observation, SearchSpace, stacked
from edge_agent.planning.families.question import Question
from edge_agent.planning.search import step_seconds
from shared.errors import PlanError
from tests.support.planning.cases import MBIT, pair
from tests.support.planning.engine_cases import QUICK, watched

ONLY = SearchSpace((32,), staleness=1, cuts=(2,))
HERE = pair(2, 1, 32)
NEXT = QUICK.named(("edge", "next"))
OTHERS = {("edge", "next"): 8 * MBIT, ("next", "edge"): 8 * MBIT}


def handed_over(engine):
    """Go on with the same cut at the next trainer, and observe its link."""
    engine.hand_over(NEXT, ONLY, stacked(NEXT, (2,), 1, (32,)))
    engine.observe(Observation(100.0, 50, OTHERS, {("edge", "next"): 0.01}))


def test_a_device_that_has_become_slow_is_slow_with_the_next_trainer_too():
    engine = Engine(QUICK, ONLY, HERE, total_steps=1000)
    watched(engine, 30, edge_seconds=3.0 * 0.1, cloud_seconds=0.03)
    handed_over(engine)
    assert engine.conditions.factors.tolist() == pytest.approx([3.0, 1.0])
    slowed = Question(NEXT.with_worker(NEXT.workers[0].slowed(3.0)), ONLY)
    as_measured = replace(engine.conditions, factors=np.ones(2))
    assert engine.predicted_seconds == pytest.approx(step_seconds(slowed, engine.layout, as_measured))


def test_the_next_trainer_is_no_slower_for_the_one_before():
    engine = Engine(QUICK, ONLY, HERE, total_steps=1000)
    watched(engine, 30, edge_seconds=0.1, cloud_seconds=3.0 * 0.03)
    handed_over(engine)
    assert engine.conditions.factors.tolist() == pytest.approx([1.0, 1.0])


def test_a_trainer_of_which_nothing_was_measured_changes_nothing():
    engine = Engine(QUICK, ONLY, HERE, total_steps=1000)
    watched(engine, 30, edge_seconds=0.1, cloud_seconds=0.03)
    before = engine.question, engine.names, engine.predicted_seconds
    with pytest.raises(PlanError, match="nothing measured for"):
        engine.hand_over(NEXT, ONLY, stacked(QUICK, (2,), 1, (32,)))
    assert (engine.question, engine.names, engine.predicted_seconds) == before
