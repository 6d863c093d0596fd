"""The costs of each worker in steps, found by what those of several divisions take with them."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from edge_agent.planning import Linear, conditions_of, load_profile, simulated_seconds
from edge_agent.profiling.workers.costs_in_steps import InSteps, costs_in_steps, with_costs
from shared.placement import AGENT, Placement, Rows, Source, Tile
from tests.conftest import ROOT

PROFILE = load_profile(ROOT / "edge_agent" / "demo" / "tiers.json")
BATCH, BLOCKS, NAMES = PROFILE.batch_size, len(PROFILE), PROFILE.names
ALL, FIRST, SECOND = Rows(0, BATCH), Rows(0, BATCH // 2), Rows(BATCH // 2, BATCH)
LAST = BLOCKS - 1


def placed(*tiles, owners=None, staleness=0):
    return Placement(
        version=0,
        blocks=BLOCKS,
        batch_size=BATCH,
        workers=NAMES,
        tiles=(Tile(AGENT, 0, 1, ALL), *tiles),
        sources=(Source(AGENT, ALL),),
        owners=owners or {},
        staleness=staleness,
    )


def shared(near, far):
    tiles = Tile(near, 1, LAST, FIRST), Tile(far, 1, LAST, SECOND), Tile(far, LAST, BLOCKS, ALL)
    return placed(*tiles, owners=dict.fromkeys(range(1, LAST), far))


def passed_on(near, far):
    before = () if near == AGENT else (Tile(near, 1, 2, ALL),)
    return placed(*before, Tile(far, 1 + len(before), BLOCKS, ALL))


def shared_by_all():
    third = BATCH // 3
    ends = pairwise((0, third, 2 * third, BATCH))
    tiles = [Tile(name, 1, BLOCKS, Rows(*rows)) for name, rows in zip(NAMES, ends, strict=True)]
    return placed(*tiles, owners=dict.fromkeys(range(1, BLOCKS), AGENT), staleness=1)


DIVISIONS = [
    placed(Tile(AGENT, 1, BLOCKS, ALL)),
    *(of(near, far) for near, far in combinations(NAMES, 2) for of in (shared, passed_on)),
    shared_by_all(),
]


def step_seconds(costs, placement, factors=(1.0, 1.0, 1.0)):
    blocks = PROFILE.by_samples.slowed(dict(zip(NAMES, factors, strict=True)))
    changed = replace(PROFILE, by_samples=replace(blocks, messages=dict(zip(NAMES, costs, strict=True))))
    return simulated_seconds(changed, placement, conditions_of(changed))


def found_in(measured):
    found = costs_in_steps(PROFILE, measured)
    return [found[name].message for name in NAMES], [found[name].factor for name in NAMES]


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
    messages, factors = found_in(measured)
    assert all(part >= 0.0 for cost in messages for part in cost)
    for placement, seconds in measured:
        assert step_seconds(messages, placement, factors) == pytest.approx(seconds, rel=0.06), (
            "costs far from alike are not believed whole"
        )


def test_a_worker_whose_messages_take_much_longer_than_others_is_found():
    costs = Linear(0.03), Linear(0.003), Linear(0.003)
    messages, _ = found_in([(placement, step_seconds(costs, placement)) for placement in DIVISIONS])
    at_10_kb = [cost.at(10_000) for cost in messages]
    assert at_10_kb[0] > 2 * max(at_10_kb[1:])


def test_a_worker_whose_blocks_take_less_in_steps_than_alone_is_found():
    costs, factors = (Linear(0.003),) * 3, (1.0, 0.8, 1.0)
    _, found = found_in([(placement, step_seconds(costs, placement, factors)) for placement in DIVISIONS])
    assert found == pytest.approx(factors, abs=0.08)


def test_steps_that_are_quicker_than_their_parts_have_messages_that_cost_nothing():
    nothing = (Linear(0.0),) * 3
    messages, factors = found_in([(placement, 0.9 * step_seconds(nothing, placement)) for placement in DIVISIONS])
    assert max(cost.at(10_000) for cost in messages) < 1e-5
    assert max(factors) < 1.0


def test_where_no_division_was_tried_messages_cost_nothing_and_blocks_what_they_do_alone():
    assert found_in([]) == ([Linear(0.0)] * 3, [1.0] * 3)


def test_a_profile_has_the_costs_that_were_found():
    costs = {name: InSteps(Linear(0.001 * place, 1e-9), 1.0 + place) for place, name in enumerate(NAMES)}
    profile = with_costs(PROFILE, costs)
    for place, name in enumerate(NAMES):
        assert profile.by_samples.messages[name] == costs[name].message
        for after, before in zip(profile.by_samples.blocks[name], PROFILE.by_samples.blocks[name], strict=True):
            slowed = before.slowed(1.0 + place)
            assert [*after.forward, *after.backward, after.update] == pytest.approx(
                [*slowed.forward, *slowed.backward, slowed.update]
            )
