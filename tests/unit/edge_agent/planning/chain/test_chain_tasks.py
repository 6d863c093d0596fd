"""A partition as a placement: its cost equals the plan's, and a run over traces takes the time that the rates allow."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.step_cost import step_cost
from benchmarks.rivals.pair import over
from edge_agent.planning import (
    LinkTrace,
    MessageSeconds,
    Profile,
    Question,
    Rates,
    SearchSpace,
    Setting,
    Trace,
    best,
    compare,
    conditions_of,
    layout_tasks,
    loads_of,
    measured_rates,
    simulate_placement,
    stacked,
)
from edge_agent.planning.profile import parse_profile
from edge_agent.planning.runs.simulator import simulate_phases
from shared.errors import PlanError
from tests.support.planning.cases import profiles
from tests.support.planning.chain_runs import hops, linked, plan_chain
from tests.support.planning.chains import chain_document


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from((0, 1, 2, 5)))
def test_the_cost_of_any_placement_says_the_same(blocks, stages, seed, staleness):
    stages = min(stages, blocks)
    chain = parse_profile(chain_document(blocks, stages, seed), "chain")
    plan = plan_chain(chain, (2, 4, 32), staleness)
    cost, loads, at = (
        step_cost(layout_tasks(chain, plan.layout, measured_rates(chain))),
        loads_of(chain, [plan.layout]),
        conditions_of(chain),
    )
    names = chain.names
    stages = {names[place]: float(seconds[0]) for place, seconds in loads.worker_seconds(at).items() if seconds[0]}
    assert cost.workers == pytest.approx(stages)
    links = {(names[near], names[far]): float(one[0]) for (near, far), one in loads.direction_seconds(at).items()}
    used = {hop: seconds for hop, seconds in links.items() if seconds}
    assert {hop: cost.directions[hop] for hop in used} == pytest.approx(used)
    assert cost.bound() == pytest.approx(plan.seconds_per_step)


def test_an_unmeasured_placement_has_no_tasks():
    document = chain_document(3, 2)
    document["workers"][1]["replayed"] = [run for run in document["workers"][1]["replayed"] if run[:2] != [1, 3]]
    chain = parse_profile(document, "chain")
    with pytest.raises(PlanError, match="was not measured; choose other cuts or bits"):
        layout_tasks(chain, stacked(chain, (1,), 0, (32,)), measured_rates(chain))


LIGHT_GRADIENTS = chain_document(6, 3, seed=7) | {"gradient_bytes": [1000.0] * 7, "min_bits": None}


def setting(*traces: Trace, staleness: int | None = 2, seconds: float = 600.0) -> Setting:
    chain = parse_profile(LIGHT_GRADIENTS, "chain")
    links = [LinkTrace(trace, trace, link.round_trip_seconds) for trace, link in zip(traces, hops(chain), strict=True)]
    return Setting(chain, links, SearchSpace((2, 4, 32), staleness, allow_edge_only=False), seconds)


def probed(one: Setting) -> Profile:
    """Return the chain over its links as they are during the probe."""
    return linked(one.profile, one.probed())


def test_a_run_over_rates_that_hold_takes_what_the_simulator_of_a_placement_says():
    one = setting(Trace.constant(8e6), Trace.constant(3e6))
    (run,) = compare(one, ["partition"]).values()
    start = run.start
    assert start == best(Question(probed(one), one.space)).layout
    step = layout_tasks(probed(one), start, measured_rates(probed(one)))
    expected = 100 * simulate_placement(step, 60).seconds_per_step()
    assert run.seconds_per_100_steps == pytest.approx(expected, rel=0.01)


@pytest.mark.full
def test_a_run_feels_its_slower_half():
    fast, slow = (compare(setting(rate, rate))["partition"] for rate in (Trace.constant(8e6), Trace.constant(0.25e6)))
    halves = Trace([0.0, 300.0, 600.0], [8e6, 0.25e6])
    mixed = compare(setting(halves, halves))["partition"]
    assert fast.seconds_per_100_steps < mixed.seconds_per_100_steps
    # It keeps the plan for the link as probed. A plan for the slow half does better there.
    assert mixed.start == fast.start != slow.start


@pytest.mark.slow
def test_the_plan_is_not_slower_than_an_even_split():
    planned, _, even = compare(setting(Trace.constant(1e6), Trace.constant(1e6))).values()
    assert planned.seconds_per_100_steps < even.seconds_per_100_steps
    assert (even.start.cuts, even.start.bits) == ((2, 4), (32, 32))


def test_where_k_is_left_open_it_is_the_least_that_costs_nothing():
    open_k = setting(Trace.constant(8e6), Trace.constant(8e6), staleness=None)
    (run,) = compare(open_k, ["partition"]).values()
    start = run.start
    chain = probed(open_k)
    each = loads_of(chain, [replace(start, staleness=start.staleness - less) for less in (0, 1)])
    least, more = each.seconds(conditions_of(chain))
    assert least == each.at(conditions_of(chain)).longest[0] < more


def test_an_unknown_planner_is_refused():
    with pytest.raises(PlanError, match='there is no planner "accurate" of a chain; there are partition, greedy, even'):
        compare(setting(Trace.constant(1e6), Trace.constant(1e6)), ["accurate"])


@pytest.mark.slow
def test_the_engine_follows_a_link_that_changes_for_good_and_is_not_slower_than_the_plan_that_is_kept():
    first = Trace([0.0, 120.0, 1200.0], [8e6, 0.5e6])
    one = setting(first, Trace.constant(8e6), seconds=900.0)
    kept, followed = compare(one, ["partition", "greedy"]).values()
    assert followed.start == kept.start
    assert followed.switches
    assert followed.steps > 1.05 * kept.steps


@given(profiles(complete=True), st.sampled_from((0.0, 0.1)), st.integers(0, 10**6))
def test_a_run_of_two_workers_is_what_their_four_phases_say(profile, trip_seconds, seed):
    draw = random.Random(seed)
    bare = replace(profile, workers=tuple(replace(one, message=MessageSeconds()) for one in profile.workers))
    if len(bare) < 2:
        return
    layout = stacked(bare, (draw.randint(1, len(bare) - 1),), draw.choice((0, 2)), (32,))
    link = LinkTrace(Trace.constant(draw.uniform(1e6, 1e8)), Trace.constant(draw.uniform(1e6, 1e8)), trip_seconds)
    (seconds,) = loads_of(bare, [layout]).seconds(over(bare, Rates(link.uplink.mean, link.downlink.mean, trip_seconds)))
    if not 0.0 < seconds < 10.0:
        return
    run_seconds = 50.0 * seconds
    phases = simulate_phases(bare, layout, link, 0.0, run_seconds)
    found = Rates(link.uplink.mean, link.downlink.mean, trip_seconds)
    bare = linked(bare, [found])
    run = simulate_placement(layout_tasks(bare, layout, measured_rates(bare)), until=run_seconds)
    assert len(run.settled) == pytest.approx(len(phases.settled), rel=0.05)
