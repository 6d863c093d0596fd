"""The engine of a run on three tiers: it divides layers and samples anew where links or workers change, and else stays."""

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.planning import (
    Conditions,
    Engine,
    Observation,
    Question,
    Reason,
    SearchSpace,
    best,
    conditions_of,
    stacked,
)
from edge_agent.planning.cost import bits_between, computing_seconds, joined, simulated_loads, simulated_seconds
from edge_agent.planning.engine.pool import is_measured
from edge_agent.planning.engine.returning import return_search
from edge_agent.planning.families.registry import neighbours, permits
from edge_agent.planning.profile_operations import coded
from shared.errors import PlanError
from tests.support.planning.tier_runs import DEMO, TiersTraining

KNOWN = replace(DEMO, max_staleness=0)


def divided(training):
    """Count the samples of each worker's part of shared blocks."""
    return {tile.worker: tile.rows.count for tile in training.engine.layout.tiles if tile.first == 1}


def changed(rates: float = 1.0, device: float = 1.0) -> Conditions:
    """Return measured conditions with another link of the device to near, and another device."""
    at = conditions_of(DEMO)
    now = replace(at, rates=at.rates.copy(), factors=at.factors.copy())
    now.rates[0, 1] *= rates
    now.factors[0] *= device
    return now


@pytest.mark.slow
@pytest.mark.parametrize("bits", [(32,), (8, 32)])
@pytest.mark.parametrize(("staleness", "near"), [(0, 0.01), (2, 0.05)])
def test_loads_are_exact_under_the_conditions_and_nearly_so_near_them(bits, staleness, near):
    question = Question(KNOWN, SearchSpace(bits, staleness))
    here = conditions_of(DEMO)
    start = best(question, here).layout
    layouts = [start, *neighbours(question, start, here)]
    loads = joined([simulated_loads(KNOWN, layout, here) for layout in layouts])
    for at, middle, most in ((here, 1e-9, 1e-9), (changed(rates=0.9, device=1.1), near, 0.3)):
        seconds = np.array([simulated_seconds(KNOWN, coded(KNOWN, layout), at) for layout in layouts])
        off = np.abs(loads.seconds(at) / seconds - 1.0)
        assert np.median(off) <= middle
        assert off.max() <= most, "messages may overtake each other"


@pytest.mark.slow
def test_neighbours_are_divisions_that_may_be_chosen():
    question = Question(replace(DEMO, max_staleness=2), SearchSpace((8, 32)))
    start = best(question).layout
    found = list(neighbours(question, start, conditions_of(DEMO)))
    assert permits(question, start)
    assert len(set(found)) >= 10
    assert all(permits(question, one) for one in found)
    assert {one.staleness for one in found} == {0, 2}
    assert any(one.tiles != start.tiles and one.cuts == start.cuts for one in found), "only shares differ"


def test_what_may_not_be_chosen_is_no_neighbour_and_is_not_permitted():
    question = Question(KNOWN, SearchSpace((32,), 0))
    labels_stay = replace(question, space=replace(question.space, labels_to=frozenset()))
    start = best(labels_stay).layout
    assert start.tiles[-1].worker == "edge"
    assert all(one.tiles[-1].worker == "edge" for one in neighbours(labels_stay, start, conditions_of(DEMO)))
    on_gpu = stacked(DEMO, (1, 1), 0, (32, 32))
    assert permits(question, on_gpu)
    assert not permits(labels_stay, on_gpu)
    assert not permits(question, replace(on_gpu, staleness=1))
    raw = replace(on_gpu, tiles=(replace(on_gpu.tiles[1], first=0),), source="edge")
    assert not permits(question, raw)
    inputs_go = replace(question, space=replace(question.space, inputs_to=frozenset({"gpu"})))
    assert permits(inputs_go, raw)


def test_where_k_is_open_the_best_has_the_k_that_is_quickest():
    profile = replace(DEMO, max_staleness=3)
    found, at_0 = (best(Question(profile, SearchSpace((32,), staleness))) for staleness in (None, 0))
    assert found.layout.staleness == 3
    assert found.seconds_per_step < at_0.seconds_per_step


@pytest.mark.slow
def test_it_stays_calm_under_noise():
    training = TiersTraining()
    training.noise = 0.03
    training.run(60)
    assert training.decisions == []


@pytest.mark.slow
def test_a_worker_that_becomes_slow_gets_fewer_samples():
    training = TiersTraining()
    training.run(20)
    before = divided(training)
    training.slowness[1] = 3.0
    training.run(80)
    assert training.decisions[0][1].reason is Reason.DEVICE
    assert divided(training)["near"] < before["near"]
    assert training.true_seconds(training.engine.layout) <= 1.05 * training.best_seconds()
    settled = len(training.decisions)
    training.run(30)
    assert len(training.decisions) == settled


@pytest.mark.full
def test_a_link_that_becomes_slow_is_answered_by_another_division():
    training = TiersTraining()
    training.run(20)
    training.rates[0, 1] = training.rates[1, 0] = 0.2
    training.run(60)
    assert training.engine.layout.tiles != training.start.tiles
    assert training.true_seconds(training.engine.layout) <= 0.9 * training.true_seconds(training.start)


def test_a_change_of_shares_moves_no_block():
    question = Question(KNOWN, SearchSpace((32,)))
    start = best(question).layout
    shares = [one for one in neighbours(question, start, conditions_of(DEMO)) if one.cuts == start.cuts]
    assert shares
    assert not any(bits_between(KNOWN, start, one) for one in shares)


def test_expected_seconds_are_those_of_the_samples_of_each_worker():
    start = best(Question(KNOWN, SearchSpace((32,)))).layout
    seconds = computing_seconds(KNOWN, start)
    costs = KNOWN.by_samples.blocks["gpu"]
    (tile,) = (tile for tile in start.tiles if tile.worker == "gpu")
    expected = sum(costs[b].forward.at(tile.rows.count) + costs[b].backward.at(tile.rows.count) for b in tile.blocks)
    assert seconds[2] == pytest.approx(expected), "it owns nothing, and so updates nothing"


def test_a_division_that_is_held_is_the_only_choice():
    question = Question(KNOWN, SearchSpace((32,)))
    start = best(question).layout
    other = next(iter(neighbours(question, start, conditions_of(DEMO))))
    engine = Engine(KNOWN, question.space, start)
    engine.constrain(question.holding(other))
    assert best(engine.question).layout == other
    assert permits(engine.question, other)
    assert not permits(engine.question, start)


@pytest.mark.slow
def test_it_goes_on_with_two_workers_and_takes_the_third_back():
    training = TiersTraining()
    training.run(5)
    engine, space = training.engine, training.question.space
    engine.constrain(replace(space, workers=frozenset({"edge", "gpu"})))
    decision = engine.observe(Observation(10.0, int(training.steps)))
    assert decision.reason is Reason.PIN
    assert set(decision.layout.workers) <= {"edge", "gpu"}
    engine.note_deployed(11.0, decision.layout)
    assert engine.predicted_seconds == pytest.approx(decision.seconds_per_step, rel=0.1)
    found = return_search(engine.question, engine.conditions, ["near"])()
    assert found.layout == training.start
    assert engine.propose_return(engine.question, found).layout == training.start


def test_a_width_without_a_codec_is_not_known():
    narrow = stacked(DEMO, (1, 3), 0, (2, 2))
    assert not is_measured(KNOWN, narrow)
    assert is_measured(KNOWN, stacked(DEMO, (1, 3), 0, (8, 8)))
    with pytest.raises(PlanError, match="the profile has nothing measured for"):
        Engine(KNOWN, SearchSpace((32,)), narrow)
