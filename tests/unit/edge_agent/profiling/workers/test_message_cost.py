"""The cost of a message on each worker, found by what steps of several divisions take with it."""

from dataclasses import replace
from itertools import combinations

import pytest

from edge_agent.profiling.workers.message_cost import message_costs
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.planning import Linear, Simulated, conditions_of, load_profile
from tests.conftest import ROOT

PROFILE = load_profile(ROOT / "deploy" / "demo" / "tiers.json")
BATCH, BLOCKS, NAMES = PROFILE.batch_size, len(PROFILE), PROFILE.names
ALL, FIRST, SECOND = Rows(0, BATCH), Rows(0, BATCH // 2), Rows(BATCH // 2, BATCH)
LAST = BLOCKS - 1


def placed(*tiles, owners=None):
    return Placement(
        version=0,
        blocks=BLOCKS,
        batch_size=BATCH,
        workers=NAMES,
        tiles=(Tile(AGENT, 0, 1, ALL), *tiles),
        sources=(Source(AGENT, ALL),),
        owners=owners or {},
    )


def shared(near, far):
    tiles = Tile(near, 1, LAST, FIRST), Tile(far, 1, LAST, SECOND), Tile(far, LAST, BLOCKS, ALL)
    return placed(*tiles, owners=dict.fromkeys(range(1, LAST), far))


def passed_on(near, far):
    before = () if near == AGENT else (Tile(near, 1, 2, ALL),)
    return placed(*before, Tile(far, 1 + len(before), BLOCKS, ALL))


DIVISIONS = [of(near, far) for near, far in combinations(NAMES, 2) for of in (shared, passed_on)]


def step_seconds(costs, placement):
    changed = replace(PROFILE, by_samples=replace(PROFILE.by_samples, messages=dict(zip(NAMES, costs, strict=True))))
    return Simulated(changed, conditions_of(changed)).seconds(placement)


@pytest.mark.slow
@pytest.mark.parametrize(
    "costs",
    [
        (Linear(0.03), Linear(0.01), Linear(0.002)),
        (Linear(0.001), Linear(0.02, 2e-7), Linear(0.0)),
        (Linear(0.004, 1e-7), Linear(0.004, 1e-7), Linear(0.004, 1e-7)),
    ],
)
def test_with_the_costs_that_are_found_the_simulator_has_the_measured_steps(costs):
    measured = [(placement, step_seconds(costs, placement)) for placement in DIVISIONS]
    found = [message_costs(PROFILE, measured)[name] for name in NAMES]
    assert all(part >= 0.0 for cost in found for part in cost)
    for placement, seconds in measured:
        assert step_seconds(found, placement) == pytest.approx(seconds, rel=0.02)


def test_a_worker_whose_messages_take_much_longer_than_others_is_found():
    costs = Linear(0.03), Linear(0.003), Linear(0.003)
    found = message_costs(PROFILE, [(placement, step_seconds(costs, placement)) for placement in DIVISIONS])
    at_10_kb = [found[name].at(10_000) for name in NAMES]
    assert at_10_kb[0] > 2 * max(at_10_kb[1:])


def test_steps_that_are_quicker_than_their_parts_have_messages_that_cost_nothing():
    nothing = (Linear(0.0),) * 3
    measured = [(placement, 0.9 * step_seconds(nothing, placement)) for placement in DIVISIONS]
    assert message_costs(PROFILE, measured) == dict.fromkeys(NAMES, Linear(0.0))


def test_where_no_division_was_tried_messages_cost_nothing():
    assert message_costs(PROFILE, []) == dict.fromkeys(NAMES, Linear(0.0))
