"""The simulator of any placement: it ends, keeps K, stays above the bound, and agrees with the one of two workers."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.chains import chain_step, over_the_bound, random_chain
from benchmarks.planning.mixes import mixes, most_over_the_bound
from benchmarks.planning.step_cost import step_cost
from edge_agent.planning import (
    BlockCosts,
    BlockSeconds,
    Linear,
    LinkTrace,
    Rates,
    Trace,
    simulate_placement,
    step_tasks,
)
from edge_agent.planning.network import Network
from edge_agent.planning.placement_simulator import steady_step_seconds
from edge_agent.planning.runs.simulator import simulate_phases
from shared.errors import PlanError
from shared.placement import BlockFacts, Link, ModelFacts, Placement, Rows, Source, StepPlan, Tile, two_workers
from tests.support.placements import WORKERS, models, placements
from tests.support.planning.cases import block_costs, edge_and_trainer, pair, profiles, rates, small_profile

part_seconds = st.floats(0.01, 0.1)
BOTH_LEARN = ModelFacts((BlockFacts("b0"), BlockFacts("b1")))
both_ways = st.tuples(part_seconds, part_seconds)


@given(data=st.data(), rounds=st.integers(1, 4))
def test_any_placement_runs_to_its_end_and_never_faster_than_its_bound(data, rounds):
    model = data.draw(models())
    placement = data.draw(placements(model))
    costs = data.draw(block_costs(model, WORKERS))
    carried = {link: data.draw(rates) for link in StepPlan(placement, model).links}
    step = step_tasks(placement, model, costs, carried)
    steps = rounds * (placement.staleness + 1)
    run = simulate_placement(step, steps)
    assert len(run.settled) == len(run.done) == steps
    assert all(earlier <= later for earlier, later in itertools.pairwise(run.done))
    assert all(settled <= done for settled, done in zip(run.settled, run.done, strict=True))
    last_tails = max(sum(task.tail_seconds for task in tasks) for tasks in step.workers.values())
    assert run.done[-1] + last_tails >= steps * step_cost(step).bound() * (1 - 1e-9)


@given(profiles(complete=True), rates, st.integers(1, 8), st.integers(0, 6), st.sampled_from((2, 8, 32)))
def test_two_workers_settle_when_their_four_phases_do(profile, link, cut, staleness, bits):
    deployment = pair(min(cut, len(profile)), staleness, bits, profile)
    both_ways = LinkTrace(Trace.constant(link.uplink), Trace.constant(link.downlink), link.round_trip_seconds)
    run = simulate_placement(edge_and_trainer(profile, deployment, link), 30)
    phases = simulate_phases(profile, deployment, both_ways, 0.0, run.settled[-1])
    assert len(phases.settled) >= 30
    assert run.settled == pytest.approx(phases.settled[:30])


@st.composite
def chains(draw):
    """Draw three or four workers whose parts differ by up to ten times, some far away."""
    count = draw(st.integers(3, 4))
    return chain_step(
        0,
        [draw(both_ways) for _ in range(count)],
        [draw(both_ways) for _ in range(count - 1)],
        draw(st.sampled_from((0.0, 0.02))),
    )


def test_a_source_begins_a_batch_before_it_takes_up_a_gradient():
    step = chain_step(3, [(1.0, 1.0), (0.5, 0.5)], [(0.25, 0.25)])
    # The gradient of step 0 arrives at 2.5, during the forward pass of step 2. That of step 3 comes first.
    assert simulate_placement(step, 8).settled[:2] == pytest.approx((5.0, 7.0))


def test_features_and_gradients_take_turns_at_other_workers():
    step = chain_step(2, [(0.5, 0.5), (1.0, 1.0), (0.25, 0.25)], [(0.125, 0.125)] * 2)
    # At 2.625 the feature of step 2 has waited for a second in the middle, after two features, and the gradient of step
    # 0 for a quarter. At 3.625 the feature is next, although the gradient of step 1 has arrived, too.
    assert simulate_placement(step, 6).settled[:2] == pytest.approx(
        (2.625 + 1.0 + 0.125 + 0.5, 4.625 + 1.0 + 0.125 + 0.5)
    )


def test_an_update_goes_before_a_newer_step():
    placement = two_workers("edge", "trainer", 1, 2, 1, staleness=1)
    block = BlockSeconds(Linear(1.0), Linear(1.0), update=0.5)
    costs = BlockCosts({"edge": (block,) * 2, "trainer": (block,) * 2}, (1.0,) * 3, (0.0,) * 2, 0.0, {})
    step = step_tasks(placement, BOTH_LEARN, costs, {Link("edge", "trainer"): Rates(80.0, 80.0)}, replays=False)
    # Step 1 arrives at 2.1, while the trainer has step 0. That is updated at 3.1 to 3.6 and computed until 5.6.
    assert simulate_placement(step, 6).settled[:2] == pytest.approx((1.1 + 2.0 + 0.1 + 1.5, 3.6 + 2.0 + 0.1 + 1.5))


@given(step=chains())
def test_a_chain_without_staleness_is_at_the_bound(step):
    assert simulate_placement(step, 6).seconds_per_step() == pytest.approx(step_cost(step).bound())


@given(alone=chains())
def test_a_chain_with_steps_to_spare_stays_near_its_slowest_part(alone):
    cost = step_cost(alone)
    step = replace(alone, ahead=math.ceil(2 * cost.total() / cost.longest()))
    per_step = simulate_placement(step, 12 * (step.ahead + 1)).seconds_per_step()
    assert per_step <= cost.longest() * 1.25


@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("workers", [3, 4])
def test_mixes_of_slow_parts_are_at_the_bound(workers, staleness):
    for mix in mixes(workers):
        over = over_the_bound(chain_step(staleness, mix.compute, mix.carry))
        assert over <= most_over_the_bound(workers, staleness, mix.name), mix.name


def test_most_chains_are_near_the_bound_at_any_staleness():
    ratios = [over_the_bound(random_chain(number, staleness)) for staleness in (1, 2, 3, 5) for number in range(25)]
    near = sum(ratio <= 1.05 for ratio in ratios) / len(ratios)
    assert near > 0.7
    assert max(ratios) < 1.35


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_cost_of_a_message_keeps_the_worker_and_not_the_message(staleness):
    placement = two_workers("edge", "trainer", 1, 2, 1, staleness=staleness)
    block = BlockSeconds(Linear(1.0), Linear(2.0), 0.0)
    costs = BlockCosts({"edge": (block,) * 2, "trainer": (block,) * 2}, (1.0,) * 3, (0.0,) * 2, 0.0, {})
    costs = replace(costs, messages={"edge": Linear(0.4), "trainer": Linear(0.1)})
    step = step_tasks(placement, BOTH_LEARN, costs, {Link("edge", "trainer"): Rates(1e12, 1e12)})
    forward_and_backward, of_messages = 3.0, 3 * 0.4  # labels, a feature, an error gradient
    expected = {
        0: 2 * forward_and_backward + 2 * 0.4,  # labels before a step, an error gradient after it; a feature is away
        1: forward_and_backward + 1.0 + of_messages,  # the edge has no rest, and replays
    }
    assert steady_step_seconds(step) == pytest.approx(expected[staleness], rel=1e-6)


@given(staleness=st.integers(0, 3))
def test_steps_go_ahead_where_nothing_can_be_stale(staleness):
    """The first of two workers learns nothing, so K does not delay it, however far away the second is."""
    model = ModelFacts((BlockFacts("b0", trainable=False), BlockFacts("b1")))
    placement = two_workers("edge", "trainer", 1, 2, 1, staleness=staleness)
    block = BlockSeconds(Linear(0.5), Linear(0.5), 0.0)
    costs = BlockCosts({"edge": (block,) * 2, "trainer": (block,) * 2}, (1.0,) * 3, (0.0,) * 2, 0.0, {})
    step = step_tasks(placement, model, costs, {Link("edge", "trainer"): Rates(80.0, 80.0, round_trip_seconds=4.0)})
    assert step_cost(step).bound() == pytest.approx(1.0), "as much as the trainer computes"
    assert simulate_placement(step, 24).seconds_per_step() == pytest.approx(1.0)


def test_a_run_that_is_too_short_has_no_steady_step():
    step = chain_step(2, [(1.0, 1.0)] * 2, [(1.0, 1.0)])
    with pytest.raises(PlanError, match="needs 9 at least"):
        simulate_placement(step, 8).seconds_per_step()


@given(data=st.data())
def test_a_step_with_a_full_pipeline_is_that_of_a_long_run(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    costs = data.draw(block_costs(model, WORKERS))
    carried = {link: data.draw(rates) for link in StepPlan(placement, model).links}
    step = step_tasks(placement, model, costs, carried)
    steady = steady_step_seconds(step)
    assert steady >= step_cost(step).bound() * (1 - 1e-9)
    run = simulate_placement(step, 100 * (step.ahead + 1))
    # Some runs repeat for a while before they change once more.
    assert steady == pytest.approx(run.seconds_per_step(), rel=0.05)


def two_features_at_once(shared, rates=None):
    """A device whose features go to two trainers, each of which has half of the samples: a second on either link. rates: up."""
    tiles = (Tile("edge", 0, 1, Rows(0, 2)), Tile("near", 1, 2, Rows(0, 1)), Tile("gpu", 1, 2, Rows(1, 2)))
    placement = Placement(
        version=0,
        blocks=2,
        batch_size=2,
        workers=("edge", "near", "gpu"),
        tiles=tiles,
        sources=(Source("edge", Rows(0, 2)),),
        owners={1: "near"},
    )
    block = BlockSeconds(Linear(0.0, 0.25), Linear(0.0, 0.25), 0.0)
    costs = BlockCosts(dict.fromkeys(placement.workers, (block,) * 2), (1.0,) * 3, (0.0,) * 2, 0.0, {})
    rates = rates or {"near": 8.0, "gpu": 8.0}
    links = {Link("edge", name): Rates(rate, 8e9) for name, rate in rates.items()}
    links[Link("near", "gpu")] = Rates(8e9, 8e9)
    return step_tasks(placement, BOTH_LEARN, costs, links, shared=shared)


def arrivals(step):
    """Return the seconds that each of the two features is on its link, where both begin at once."""
    network, found = Network(step, {}), {}
    features = [one for task in step.workers["edge"] for one in task.deliveries if one.bits == 8.0]
    ends = []
    for number, one in enumerate(features):
        network.add((one.urgency(0), number, one))
        ends += network.carry_next(one.direction, 0.0)
    while ends:
        moment, direction, number = ends.pop(ends.index(min(ends)))
        if network.end(direction, number) is not None:
            found[direction[1]] = moment
            ends += network.carry_next(direction, moment)
    return found


def test_links_on_one_segment_have_equal_parts_of_it_each_way():
    apart, together = (
        simulate_placement(two_features_at_once(shared), 3) for shared in ((), [[("edge", "near"), ("edge", "gpu")]])
    )
    # Half a second of the device, a second on the link, half a second of either trainer, and half a second again.
    assert apart.settled[0] == pytest.approx(2.5)
    assert together.settled[0] == pytest.approx(3.5), "both features take two seconds"


def test_what_a_slow_link_leaves_of_a_segment_is_for_the_others():
    shared = [[("edge", "near"), ("edge", "gpu")]]
    near, gpu = (arrivals(two_features_at_once(shared, {"near": 8.0, "gpu": gpu})) for gpu in (2.0, 16.0))
    # Of 8 bit/s the one can carry 2, which leaves 6 for the other.
    assert near == {"near": pytest.approx(8 / 6), "gpu": pytest.approx(4.0)}
    # Each has 8 of 16.
    assert gpu == {"near": pytest.approx(1.0), "gpu": pytest.approx(1.0)}


def test_a_segment_carries_both_ways_at_once():
    step = two_features_at_once([[("edge", "near"), ("gpu", "edge")]])
    assert simulate_placement(step, 3).settled[0] == pytest.approx(2.5), "the one goes up and the other down"


def test_a_trace_carries_what_a_constant_rate_would_have():
    profile, deployment = small_profile(), pair(2, 1, 32)
    step = edge_and_trainer(profile, deployment, Rates(8e6, 4e6))
    steady = simulate_placement(step, 8)
    traces = {("edge", "trainer"): Trace.constant(8e6), ("trainer", "edge"): Trace.constant(4e6)}
    traced = simulate_placement(step, 8, traces=traces, begin=100.0)
    assert [moment - 100.0 for moment in traced.settled] == pytest.approx(steady.settled)


def test_no_step_begins_after_the_end_and_those_under_way_are_done():
    step = edge_and_trainer(small_profile(), pair(2, 1, 32), Rates(8e6, 8e6))
    whole = simulate_placement(step, 20)
    ended = simulate_placement(step, until=whole.settled[5])
    assert ended.settled == pytest.approx(whole.settled[: len(ended.settled)])
    assert len(ended.settled) in (6, 7), "one more than were settled may have been under way"
    assert len(simulate_placement(step, until=0.0).settled) == 1
