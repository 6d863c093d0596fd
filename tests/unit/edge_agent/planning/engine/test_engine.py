"""The decision engine in the simulator: the loss that it may cause, the gain that it must reach, and an operator's pin."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planning import (
    Engine,
    EngineConfig,
    Observation,
    ProfiledBlock,
    SearchSpace,
    greedy,
    loads_of,
    simulate,
)
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.rates import Rates
from shared.errors import PlanError
from tests.support.examples import examples
from tests.support.planning.cases import MBIT, asked, pair, small_profile
from tests.support.planning.engine_cases import (
    HEAVY,
    LIGHT,
    QUICK,
    REPLAYED,
    SPACE,
    best_for,
    between,
    both,
    symmetric,
    watched,
)


@pytest.mark.full
@given(
    profile=st.sampled_from((LIGHT, small_profile(), HEAVY, REPLAYED)),
    period=st.floats(1.0, 300.0),
    rates=st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)),
    known=st.integers(0, 1),
)
@settings(
    max_examples=examples(20), deadline=None, derandomize=True
)  # benchmarks.planning.flapping looks for exceptions.
def test_a_link_that_oscillates_never_costs_more_than_3_percent(profile, period, rates, known):
    link = symmetric(*((period / 2, rate) for rate in rates))
    kept, run = both(profile, link, best_for(profile, rates[known]), 1200.0)
    # The batches in flight at the end are no loss.
    assert run.steps >= kept / 1.03 - profile.max_staleness - 1


@pytest.mark.full
@given(
    profile=st.sampled_from((LIGHT, small_profile(), REPLAYED)), mbit=st.floats(0.5, 200.0), begun=st.floats(0.5, 200.0)
)
@settings(max_examples=examples(25), deadline=None, derandomize=True)
def test_on_a_steady_link_it_ends_within_5_percent_of_the_best_deployment(profile, mbit, begun):
    link = symmetric((1.0, mbit))
    start = best_for(profile, begun)
    _, run = both(profile, link, start, 1800.0)
    last = run.switches[-1].layout if run.switches else start
    at = over(profile, Rates(mbit * MBIT, mbit * MBIT))
    best = listed_pairs(profile, SPACE, (0, profile.max_staleness)).loads.seconds(at).min()
    assert loads_of(profile, [last]).seconds(at)[0] <= 1.06 * best


@pytest.mark.full
def test_an_edge_whose_replay_takes_longer_than_the_way_waits_instead_and_replays_again_when_the_link_is_slow():
    start = pair(1, 3, 32)
    kept, run = both(REPLAYED, symmetric((1.0, 1000.0)), start, 1800.0)
    assert [switch.layout for switch in run.switches] == [pair(1, 0, 32)]
    assert run.steps > 1.2 * kept
    _, run = both(REPLAYED, symmetric((900.0, 1000.0), (3000.0, 3.0)), start, 2700.0)
    assert run.switches[0].layout.staleness == 0
    assert run.switches[-1].layout.staleness == 3
    edge = REPLAYED.workers[0]
    measured_alike = REPLAYED.with_worker(dataclasses.replace(edge, serial=edge.replayed))
    assert both(measured_alike, symmetric((1.0, 1000.0)), start, 1800.0)[1].switches == ()


def test_a_run_that_begins_without_staleness_takes_it_at_once_where_that_is_faster():
    engine = Engine(LIGHT, SPACE, pair(1, 0, 32))
    decision = watched(engine, 10, 40 * MBIT, 40 * MBIT, 0.2)
    assert decision is not None
    assert decision.layout.staleness == 3


@pytest.mark.slow
@pytest.mark.parametrize("silent_seconds", [0, 20])
def test_links_that_were_away_say_nothing_of_the_layout(silent_seconds):
    """A loss shows only once a trainer was silent for a while. Until then the links seem to carry what they did."""
    engine = Engine(LIGHT, SPACE, pair(1, 3, 32), total_steps=10_000)
    rates, seconds, step = Rates(40 * MBIT, 40 * MBIT), 0, 0
    for _ in range(20):
        for _ in range(60):
            seconds, step = seconds + 1, step + 1
            assert engine.observe(between(seconds, step, rates)) is None
        assert engine.outcome().measured_seconds_per_step == pytest.approx(1.0, rel=0.01)
        for _ in range(silent_seconds):
            seconds += 1
            assert engine.observe(between(seconds, step, rates)) is None
        for _ in range(40):
            seconds += 1
            engine.note_standstill(float(seconds), step)


def test_links_of_workers_that_the_profile_lacks_say_nothing():
    engine = Engine(LIGHT, SPACE, pair(1, 3, 32))
    rates = {("edge", "spare"): MBIT, ("spare", "edge"): MBIT}
    assert engine.observe(Observation(1.0, 1, rates, {("edge", "spare"): 0.1})) is None


def test_a_forbidden_k_is_left_at_once_and_the_cut_stays():
    engine = Engine(REPLAYED, SPACE, pair(3, 2, 8))
    decision = watched(engine, 1, 1000 * MBIT, 1000 * MBIT)
    assert decision.layout == pair(3, 0, 8)
    engine.note_deployed(1.0, decision.layout)
    assert engine.layout.staleness == 0
    engine = Engine(LIGHT, SPACE, pair(3, 2, 8))
    assert watched(engine, 1, 8 * MBIT, 8 * MBIT).layout == pair(3, 3, 8)


@pytest.mark.slow
def test_a_link_that_changes_for_good_is_followed():
    link = symmetric((60.0, 40.0), (3000.0, 1.0))
    start = best_for(LIGHT, 40.0)
    kept, run = both(LIGHT, link, start, 1800.0)
    assert run.steps > 1.5 * kept
    # An oscillation looks the same for minutes, and a drain takes half a minute a step.
    fast, slow = (
        greedy(*asked(LIGHT, Rates(mbit * MBIT, mbit * MBIT), SPACE, 10_000)).seconds_per_step for mbit in (40.0, 1.0)
    )
    assert run.steps >= 0.8 * (60.0 / fast + 1740.0 / slow)


def test_where_nothing_is_better_nothing_changes():
    start = best_for(LIGHT, 10.0)
    _, run = both(LIGHT, symmetric((1.0, 10.0)), start, 600.0)
    assert run.switches == ()


def test_the_cost_of_moving_keeps_blocks_at_their_place():
    link = symmetric((60.0, 40.0), (3000.0, 1.0))
    start = best_for(HEAVY, 40.0)
    _, run = both(HEAVY, link, start, 120.0)
    assert all(switch.layout.tiles[0].stop == start.cut for switch in run.switches)


def test_a_proposal_is_made_once_and_waits_for_its_answer():
    engine = Engine(LIGHT, SPACE, pair(1, 3, 32))
    decision = watched(engine, 600, 1 * MBIT, 1 * MBIT, 1 / 32)
    assert decision is not None
    assert decision.seconds_per_step < decision.staying_seconds_per_step
    assert watched(engine, 100, 1 * MBIT, 1 * MBIT, 1 / 32, begin=600) is None
    engine.note_deployed(700.0, decision.layout)
    assert engine.layout == decision.layout


def test_an_operators_pin_is_proposed_whatever_it_costs_and_kept():
    start = best_for(HEAVY, 40.0)
    other = 3 if start.tiles[0].stop != 3 else 1
    engine = Engine(HEAVY, SPACE, start)
    assert watched(engine, 10, 40 * MBIT, 40 * MBIT) is None
    engine.constrain(SearchSpace(cuts=(other,), staleness=1))
    decision = watched(engine, 1, 40 * MBIT, 40 * MBIT, begin=10)
    assert (decision.layout.tiles[0].stop, decision.layout.staleness) == (other, 1)
    engine.note_deployed(20.0, decision.layout)
    assert watched(engine, 600, 40 * MBIT, 40 * MBIT, begin=21) is None


def test_a_pin_that_leaves_nothing_is_refused():
    engine = Engine(LIGHT, SPACE, pair(1, 3, 32))
    with pytest.raises(PlanError, match="the cut is 9"):
        engine.constrain(SearchSpace(cuts=(9,)))
    assert watched(engine, 3) is None


def test_an_edge_that_became_slower_gives_blocks_away():
    engine = Engine(LIGHT, SPACE, pair(3, 3, 32), total_steps=10_000)
    decision = watched(engine, 900, 100 * MBIT, 100 * MBIT, edge_seconds=30.0, cloud_seconds=0.2)
    assert decision is not None
    assert decision.layout.tiles[0].stop < 3


@pytest.mark.slow
def test_all_blocks_are_taken_where_that_is_allowed_and_the_link_is_bad_and_only_there():
    for allowed in (True, False):
        space = SearchSpace(allow_edge_only=allowed)
        engine = Engine(LIGHT, space, pair(1, 3, 32), total_steps=10_000)
        decision = watched(engine, 1800, 0.1 * MBIT, 0.1 * MBIT, 1 / 320)
        assert decision is not None
        assert decision.layout.tiles[0].stop == (4 if allowed else 3)
        engine = Engine(LIGHT, space, pair(1, 3, 32), total_steps=10_000)
        decision = watched(engine, 600, 40 * MBIT, 40 * MBIT)
        assert decision is None or decision.layout.tiles[0].stop < 4


def test_all_blocks_are_given_back_at_once_where_they_may_not_be_kept():
    engine = Engine(LIGHT, SearchSpace((2, 4, 8, 32), allow_edge_only=False), pair(4, 3, 8))
    assert watched(engine, 1, 40 * MBIT, 40 * MBIT).layout.tiles[0].stop < 4


def test_the_outcome_compares_the_prediction_with_the_measurement():
    engine = Engine(LIGHT, SPACE, pair(3, 3, 32))
    assert engine.outcome() is None
    watched(engine, 61, steps_a_second=2.0)
    outcome = engine.outcome()
    assert outcome.measured_seconds_per_step == pytest.approx(0.5, rel=0.05)
    assert outcome.modelled_seconds_per_step > 0
    assert math.isnan(outcome.predicted_seconds_per_step)


@pytest.mark.slow
@pytest.mark.parametrize(("period", "seconds"), [(1.0, 1200.0), (20.0, 1200.0), (300.0, 1800.0)])
def test_without_knowing_how_long_a_run_is_it_still_risks_little(period, seconds):
    link = symmetric((period / 2, 40.0), (period / 2, 2.0))
    start = best_for(LIGHT, 40.0)
    kept = simulate(LIGHT, [link], start, seconds).steps
    run = simulate(LIGHT, [link], start, seconds, Engine(LIGHT, SPACE, start))
    assert run.steps >= kept / 1.04 - 4


@pytest.mark.slow
def test_a_deployment_that_is_better_over_each_period_is_found_and_kept_though_the_link_dies_in_each():
    profile = small_profile(
        blocks=tuple(ProfiledBlock(f"b{i}", 5e6) for i in range(4)),
        edge_seconds=(None, 0.1, 0.2, 0.3, 2.5),
        cloud_seconds=(None, 0.04, 0.03, 0.02, 0.0),
        feature_bytes=(None, 1.6e6, 3e6, 1e5, None),
        gradient_bytes=(None, 1.6e6, 3e6, 1e5, None),
        min_bits=(32,) * 5,
    )
    link = symmetric((40.0, 60.0), (40.0, 4.0), (20.0, 0.01))
    start = best_for(profile, 60.0)
    kept, run = both(profile, link, start, 1800.0)
    assert [switch.layout.tiles[0].stop for switch in run.switches] == [3]
    # Five minutes of proof cost a sixth of the gain, and they end where the link is slow or dead.
    best = simulate(profile, [link], run.switches[0].layout, 1800.0).steps
    assert run.steps >= kept + 0.7 * (best - kept)


@pytest.mark.slow
def test_a_run_whose_account_is_overdrawn_still_leaves_for_what_has_proved_better():
    profile = small_profile(
        blocks=tuple(ProfiledBlock(f"b{i}", 2e5) for i in range(4)),
        edge_seconds=(None, 0.02, 0.06, 0.12, 0.4),
        serial_edge_seconds=(None, 0.014, 0.042, 0.084, 0.28),
        cloud_seconds=(None, 0.02, 0.015, 0.01, 0.0),
        feature_bytes=(None, 4e5, 2e5, 5e4, None),
        gradient_bytes=(None, 4e5, 2e5, 5e4, None),
        min_bits=None,
        max_staleness=5,
    )
    space = SearchSpace((8, 32), allow_edge_only=True)
    link = symmetric((10.0, 15.0), (50.0, 0.01))
    start = greedy(*asked(profile, Rates(15 * MBIT, 15 * MBIT), space)).layout
    # Six minutes of moving there and back cost more than 1 % of the work that this run was told of.
    run = simulate(profile, [link], start, 1800.0, Engine(profile, space, start, total_steps=13_500))
    alone = simulate(profile, [link], pair(4, 0, 32), 1800.0).steps
    assert run.steps >= 0.8 * alone
    assert simulate(profile, [link], start, 1800.0).steps < 0.5 * alone


@pytest.mark.slow
def test_on_a_link_that_varies_slowly_it_beats_every_deployment_that_is_kept():
    link = symmetric((60.0, 60.0), (60.0, 5.0))
    _, run = both(QUICK, link, best_for(QUICK, 60.0), 1800.0)
    found = listed_pairs(QUICK, SPACE, SPACE.best_staleness(QUICK))
    kept = [simulate(QUICK, [link], found.layout(row), 1800.0).steps for row in range(len(found))]
    assert run.steps > 1.05 * max(kept)


@pytest.mark.parametrize("noise", [1.0, 1.3])
def test_a_slow_link_is_answered_although_a_quick_worker_takes_now_more_and_now_less(noise):
    """The trainer's milliseconds vary with whatever else it does, and decide nothing beside seconds of the link."""
    space, config = SearchSpace((32,), 0, allow_edge_only=False), EngineConfig(window_seconds=3.0, dwell_seconds=2.0)
    engine = Engine(QUICK, space, pair(1, 0, 32), config, total_steps=10_000)
    fast, slow = Rates(400 * MBIT, 400 * MBIT), Rates(MBIT, MBIT)
    decisions = []
    for second in range(140):
        rates, step = (fast, 8 * second) if second < 120 else (slow, 960 + (second - 120) // 7)
        taken = 0.04 * (noise if second % 40 < 20 else 1.0)
        decision = engine.observe(between(second, step, rates, {"edge": 0.05, "trainer": taken}))
        if decision is not None:
            decisions.append((second, decision.layout.tiles[0].stop))
            break
    ((second, cut),) = decisions
    assert second > 120
    assert cut > 1
