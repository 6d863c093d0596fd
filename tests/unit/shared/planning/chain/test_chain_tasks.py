"""A partition as a placement: its cost equals the plan's, and a run over traces takes the time that the rates allow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.step_cost import step_cost
from shared.errors import PlanError
from shared.planning import LinkTrace, Trace, conditions_of, loads_of, simulate_placement, stacked
from shared.planning.chain import ChainSetting, chain_tasks, compare_chain
from shared.planning.profile import parse_profile
from tests.support.planning.chain_runs import hops, plan_chain
from tests.support.planning.chains import chain_document


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from((0, 1, 2, 5)))
def test_the_cost_of_any_placement_says_the_same(blocks, stages, seed, staleness):
    stages = min(stages, blocks)
    chain = parse_profile(chain_document(blocks, stages, seed), "chain")
    plan = plan_chain(chain, (2, 4, 32), staleness)
    cost, loads, at = step_cost(chain_tasks(chain, plan.layout)), loads_of(chain, [plan.layout]), conditions_of(chain)
    names = chain.names
    stages = {names[place]: float(seconds[0]) for place, seconds in loads.worker_seconds(at).items() if seconds[0]}
    assert cost.workers == pytest.approx(stages)
    links = {(names[near], names[far]): float(one[0]) for (near, far), one in loads.direction_seconds(at).items()}
    assert {hop: cost.directions[hop] for hop in links if hop in cost.directions} == pytest.approx(links)
    assert cost.bound() == pytest.approx(plan.seconds_per_step)


def test_an_unmeasured_placement_has_no_tasks():
    document = chain_document(3, 2)
    document["stages"][1]["seconds"][1][3] = None
    chain = parse_profile(document, "chain")
    with pytest.raises(PlanError, match="was not measured; choose other cuts or bits"):
        chain_tasks(chain, stacked(chain, (1,), 0, (32,)))


LIGHT_GRADIENTS = chain_document(6, 3, seed=7) | {"gradient_bytes": [1000.0] * 7, "min_bits": None}


def setting(*traces: Trace, staleness: int | None = 2, seconds: float = 600.0) -> ChainSetting:
    chain = parse_profile(LIGHT_GRADIENTS, "chain")
    links = [LinkTrace(trace, trace, link.round_trip_seconds) for trace, link in zip(traces, hops(chain), strict=True)]
    return ChainSetting(chain, links, (2, 4, 32), staleness, seconds)


def test_a_run_over_rates_that_hold_takes_what_the_simulator_of_a_placement_says():
    one = setting(Trace.constant(8e6), Trace.constant(3e6))
    (result,) = compare_chain(one, ["partition"])
    start = result.run.start
    assert start == plan_chain(one.probed(), one.bits, 2).layout
    step = chain_tasks(one.probed(), start)
    expected = 100 * simulate_placement(step, 60).seconds_per_step()
    assert result.seconds_per_100_steps == pytest.approx(expected, rel=0.01)


def test_a_run_feels_its_slower_half():
    fast, slow = (compare_chain(setting(rate, rate))[0] for rate in (Trace.constant(8e6), Trace.constant(0.25e6)))
    halves = Trace([0.0, 300.0, 600.0], [8e6, 0.25e6])
    mixed = compare_chain(setting(halves, halves))[0]
    assert fast.seconds_per_100_steps < mixed.seconds_per_100_steps
    # It keeps the plan for the link as probed. A plan for the slow half does better there.
    assert mixed.run.start == fast.run.start != slow.run.start


def test_the_plan_is_not_slower_than_an_even_split():
    planned, even = compare_chain(setting(Trace.constant(1e6), Trace.constant(1e6)))
    assert planned.seconds_per_100_steps < even.seconds_per_100_steps
    assert (even.run.start.cuts, even.run.start.bits) == ((2, 4), (32, 32))


def test_where_k_is_left_open_it_is_the_least_that_costs_nothing():
    open_k = setting(Trace.constant(8e6), Trace.constant(8e6), staleness=None)
    (result,) = compare_chain(open_k, ["partition"])
    start = result.run.start
    chain = open_k.probed()
    each = loads_of(chain, [replace(start, staleness=start.staleness - less) for less in (0, 1)])
    least, more = each.seconds(conditions_of(chain))
    assert least == each.at(conditions_of(chain)).longest[0] < more


def test_an_unknown_planner_is_refused():
    with pytest.raises(PlanError, match='there is no planner "greedy" of a chain; there are partition, even'):
        compare_chain(setting(Trace.constant(1e6), Trace.constant(1e6)), ["greedy"])
