"""The cost of a step at any placement: by hand, against the cost model of two workers, and rules for all."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.chains import chain_step
from benchmarks.planning.step_cost import step_cost
from benchmarks.rivals.pair import over
from edge_agent.planning import (
    BlockCosts,
    BlockSeconds,
    CodecCosts,
    Conditions,
    Layout,
    Linear,
    Rates,
    loads_of,
    simulate_placement,
    step_tasks,
)
from edge_agent.planning.cost import loads_of_step
from shared.errors import PlanError
from shared.placement import BlockFacts, Cargo, Link, ModelFacts, Placement, Route, Rows, Source, StepPlan, Tile
from tests.support.placements import WORKERS, models, placements
from tests.support.planning.cases import block_costs, edge_and_trainer, pair, profiles, rates, small_profile

TWO = ModelFacts((BlockFacts("b0"), BlockFacts("b1")))
WHOLE = Rows(0, 10)
FORWARD_BACKWARD = (BlockSeconds(Linear(0.5, 0.1), Linear(1.0, 0.2), 0.25),) * 2
"""Blocks that take 1.5 s forward and 3 s backward for ten samples."""
COSTS = BlockCosts(dict.fromkeys(WORKERS, FORWARD_BACKWARD), (0.0, 100.0, 0.0), (5000.0, 7000.0), 1.0, {})
ALL_RATES = {Link(near, far): Rates(8000.0, 4000.0, 0.5) for near, far in combinations(WORKERS, 2)}
"""Rates of a kilobyte a second away from the edge, and half of that towards it."""


def placed(*tiles: Tile, **changes: object) -> Placement:
    placement = Placement(
        version=0, blocks=2, batch_size=10, workers=WORKERS, tiles=tiles, sources=(Source("edge", WHOLE),)
    )
    return replace(placement, **changes)


SPLIT = placed(Tile("edge", 0, 1, WHOLE), Tile("far", 1, 2, WHOLE))
U_SHAPE_FACTS = ModelFacts(tuple(BlockFacts(f"b{index}") for index in range(3)))
U_SHAPE = replace(
    placed(Tile("edge", 0, 1, WHOLE), Tile("far", 1, 2, WHOLE), Tile("edge", 2, 3, WHOLE)), blocks=3, staleness=2
)
U_SHAPE_COSTS = replace(
    COSTS,
    blocks=dict.fromkeys(WORKERS, FORWARD_BACKWARD + FORWARD_BACKWARD[:1]),
    feature_bytes=(0.0, 100.0, 200.0, 0.0),
    weight_bytes=(0.0,) * 3,
)


def test_a_split_by_hand():
    cost = step_cost(step_tasks(SPLIT, TWO, COSTS, ALL_RATES))
    assert cost.workers == pytest.approx({"edge": 4.75, "far": 4.75})
    assert cost.directions == pytest.approx({("edge", "far"): 1.0 + 0.01, ("far", "edge"): 2.0})  # with the labels
    # The gradient leaves before the update beside it, and the labels before the feature.
    assert cost.critical_seconds == pytest.approx(1.5 + 1.0 + 4.5 + 2.0 + 3.0 + 0.25)
    assert cost.round_trip_seconds == pytest.approx(0.5)
    assert cost.bound() == pytest.approx(cost.critical_seconds + 0.5)


def test_the_bound_is_the_slowest_part_once_enough_steps_are_in_flight():
    bounds = [step_cost(step_tasks(replace(SPLIT, staleness=k), TWO, COSTS, ALL_RATES)).bound() for k in (0, 1, 2, 9)]
    assert bounds == pytest.approx([12.75, (12.75 + 1.5) / 2, 1.5 + 4.75, 1.5 + 4.75]), "with a replay where K > 0"


def test_only_batches_that_wait_for_their_gradient_are_replayed():
    replayed, stashed = (
        step_cost(step_tasks(U_SHAPE, U_SHAPE_FACTS, U_SHAPE_COSTS, ALL_RATES, replays=replays)).workers
        for replays in (True, False)
    )
    assert stashed == pytest.approx({"edge": 2 * 4.75, "far": 4.75})
    assert replayed == pytest.approx({"edge": 2 * 4.75 + 1.5, "far": 4.75 + 1.5}), "the edge's last block does not wait"


def test_labels_that_stay_cost_four_crossings_and_two_round_trips():
    cost = step_cost(step_tasks(U_SHAPE, U_SHAPE_FACTS, U_SHAPE_COSTS, ALL_RATES))
    assert cost.directions == pytest.approx({("edge", "far"): 1.0 + 2.0, ("far", "edge"): 4.0 + 2.0})
    assert cost.round_trip_seconds == pytest.approx(1.0)


def test_a_shared_block_costs_its_parts_their_way_and_their_return():
    halves = placed(
        Tile("near", 0, 2, Rows(0, 4)),
        Tile("far", 0, 2, Rows(4, 10)),
        owners={0: "near", 1: "near"},
        sources=(Source("near", Rows(0, 4)), Source("far", Rows(4, 10))),
    )
    cost = step_cost(step_tasks(halves, TWO, COSTS, ALL_RATES))
    assert cost.workers == pytest.approx({"near": 2 * (0.9 + 1.8 + 0.25), "far": 2 * (1.1 + 2.2)})
    assert cost.directions == pytest.approx({("far", "near"): 24.0, ("near", "far"): 12.0})
    # From far and back: forward, the backward of block 1, both parts in turn, the update of block 0, and its weights. The
    # backward of block 0 goes beside the part of block 1, whose weights come while the part of block 0 arrives.
    assert cost.critical_seconds == pytest.approx(2.2 + 2.2 + 24.0 + 0.25 + 5.0)
    assert cost.round_trip_seconds == pytest.approx(0.5)


def test_a_worker_that_shares_a_block_waits_for_its_weights():
    halves = placed(
        Tile("edge", 0, 1, WHOLE), Tile("near", 1, 2, Rows(0, 5)), Tile("far", 1, 2, Rows(5, 10)), owners={1: "near"}
    )
    step = step_tasks(halves, TWO, COSTS, ALL_RATES)
    cost = step_cost(step)
    # Far takes longer than the edge waits for both error gradients: forward and backward, its part, the update, the
    # weights.
    assert cost.critical_seconds == pytest.approx(1.0 + 2.0 + 14.0 + 0.25 + 7.0)
    assert cost.round_trip_seconds == pytest.approx(0.5)
    assert simulate_placement(step, 6).seconds_per_step() == pytest.approx(cost.bound()), "no forward is ahead of them"


def test_codecs_count_at_both_ends_and_on_the_link():
    costs = replace(
        COSTS,
        codecs={"quarter": CodecCosts(8, Linear(0.1, 1e-3), Linear(0.2, 2e-3))},
        messages=dict.fromkeys(WORKERS, Linear(0.01, 1e-4)),
    )
    plain = step_cost(step_tasks(SPLIT, TWO, costs, ALL_RATES))
    coded_placement = replace(SPLIT, codecs={Route("edge", "far", Cargo.FEATURE): "quarter"})
    coded = step_cost(step_tasks(coded_placement, TWO, costs, ALL_RATES))
    spared = 750 * 1e-4  # of the message, at each end
    assert coded.workers["edge"] - plain.workers["edge"] == pytest.approx(0.1 + 1.0 - spared)
    assert coded.workers["far"] - plain.workers["far"] == pytest.approx(0.2 + 2.0 - spared)
    assert plain.directions["edge", "far"] - coded.directions["edge", "far"] == pytest.approx(0.75)
    unknown = replace(SPLIT, codecs={Route("edge", "far", Cargo.FEATURE): "tenth"})
    with pytest.raises(PlanError, match="nothing is known of codec 'tenth'; what is known are quarter"):
        step_tasks(unknown, TWO, costs, ALL_RATES)


def test_an_edge_that_learns_nothing_waits_for_a_report():
    frozen = ModelFacts((BlockFacts("b0", trainable=False), BlockFacts("b1")))
    cost = step_cost(step_tasks(SPLIT, frozen, COSTS, ALL_RATES))
    assert cost.critical_seconds == pytest.approx(1.5 + 1.0 + 4.75)
    assert cost.round_trip_seconds == pytest.approx(0.5)


def test_an_unmeasured_placement_is_refused():
    with pytest.raises(PlanError, match="the link from 'edge' to 'far' has no rates"):
        step_tasks(SPLIT, TWO, COSTS, {Link("edge", "near"): Rates(1.0, 1.0)})
    costs = replace(COSTS, blocks=dict.fromkeys(("edge", "near"), FORWARD_BACKWARD))
    with pytest.raises(PlanError, match="nothing was measured on worker 'far'; what was are edge, near"):
        step_tasks(SPLIT, TWO, costs, ALL_RATES)


@given(profiles(complete=True), rates, st.integers(1, 8), st.integers(0, 6), st.sampled_from((2, 8, 32)))
def test_two_workers_cost_what_the_model_of_two_workers_says(profile, link, cut, staleness, bits):
    layout = pair(min(cut, len(profile)), staleness, bits, profile)
    loads, at = loads_of(profile, [layout]), over(profile, link)
    cost = step_cost(edge_and_trainer(profile, layout, link))
    assert (cost.longest(), cost.total()) == pytest.approx([float(each[0]) for each in loads.at(at)])
    assert cost.bound() == pytest.approx(float(loads.seconds(at)[0]))


@given(data=st.data())
def test_loads_cost_any_placement_at_any_rates_what_the_tasks_of_its_step_do(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    costs = data.draw(block_costs(model, WORKERS))
    links = StepPlan(placement, model).links
    loads = loads_of_step(step_tasks(placement, model, costs, dict.fromkeys(links, Rates(1.0, 1.0, 1.0))), WORKERS)
    for _ in range(2):
        carried = {link: data.draw(rates) for link in links}
        cost = step_cost(step_tasks(placement, model, costs, carried))
        at = conditions_between(carried)
        assert [float(each[0]) for each in loads.at(at)] == pytest.approx([cost.longest(), cost.total()])
        assert float(loads.seconds(at)[0]) == pytest.approx(cost.bound())


def conditions_between(links):
    """Return links between workers by name, on devices as they were measured."""
    count = len(WORKERS)
    rates, trips = np.ones((count, count)), np.zeros((count, count))
    for link, each in links.items():
        near, far = WORKERS.index(link.dialer), WORKERS.index(link.listener)
        rates[near, far], rates[far, near] = each.uplink, each.downlink
        trips[min(near, far), max(near, far)] = each.round_trip_seconds
    return Conditions(rates, trips, np.ones(count))


def test_labels_that_stay_are_costed_from_a_profile_beside_two_workers_on_one_cut():
    profile = small_profile()
    edge, trainer = profile.workers
    replayed, far = edge.replayed.copy(), trainer.replayed.copy()
    replayed[3, 4], far[1, 3] = 0.5, 0.25
    profile = profile.with_worker(replace(edge, replayed=replayed)).with_worker(replace(trainer, replayed=far))
    whole = Rows(0, profile.batch_size)
    stays = Layout((Tile("edge", 0, 1, whole), Tile("trainer", 1, 3, whole), Tile("edge", 3, 4, whole)), staleness=1)
    loads, at = loads_of(profile, [pair(1, 1, 32), stays]), over(profile, Rates(8e6, 8e6, 0.5))
    alone = loads_of(profile, [pair(1, 1, 32)])
    assert loads.seconds(at)[0] == alone.seconds(at)[0]
    # Features and gradients of 4 and 1 MB cross, at a microsecond a byte. The edge works 1.5 s, the trainer 0.25 s.
    assert [float(each[1]) for each in loads.at(at)] == pytest.approx([5.0, 1.5 + 0.25 + 2 * 5.0 + 2 * 0.5])


@given(data=st.data())
def test_nothing_gets_cheaper_by_slower_workers_or_slower_links(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    costs = data.draw(block_costs(model, WORKERS))
    carried = {link: data.draw(rates) for link in StepPlan(placement, model).links}
    before = step_cost(step_tasks(placement, model, costs, carried))
    worker = data.draw(st.sampled_from(WORKERS))
    slow = tuple(
        BlockSeconds(Linear(1.0 + block.forward.seconds, block.forward.seconds_per_unit), block.backward, block.update)
        for block in costs.blocks[worker]
    )
    slower_links = {link: replace(each, uplink=each.uplink / 2) for link, each in carried.items()}
    farther_links = {
        link: replace(each, round_trip_seconds=each.round_trip_seconds + 1.0) for link, each in carried.items()
    }
    for after in (
        step_cost(step_tasks(placement, model, replace(costs, blocks=costs.blocks | {worker: slow}), carried)),
        step_cost(step_tasks(placement, model, costs, slower_links)),
        step_cost(step_tasks(placement, model, costs, farther_links)),
    ):
        assert after.longest() >= before.longest()
        assert after.total() >= before.total() * (1 - 1e-12)
        assert after.bound() >= before.bound() * (1 - 1e-12)


@given(staleness=st.integers(0, 5), seconds=st.lists(st.floats(0.01, 1.0), min_size=14, max_size=14))
def test_a_chain_costs_the_sum_of_its_parts_or_the_slowest(staleness, seconds):
    compute = [tuple(seconds[index : index + 2]) for index in (0, 2, 4, 6)]
    carry = [tuple(seconds[index : index + 2]) for index in (8, 10, 12)]
    cost = step_cost(chain_step(staleness, compute, carry, round_trip=0.1))
    assert cost.critical_seconds == pytest.approx(sum(seconds))
    assert cost.round_trip_seconds == pytest.approx(0.3)
    slowest = max(*map(sum, compute), *np.array(carry).ravel())
    assert cost.bound() == pytest.approx(max(slowest, (sum(seconds) + 0.3) / (staleness + 1)))
