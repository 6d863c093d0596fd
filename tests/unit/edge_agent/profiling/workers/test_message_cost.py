"""The cost of a message, found by what a step takes with it."""

from dataclasses import replace

import pytest

from edge_agent.profiling.workers.message_cost import message_seconds
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.planning import Simulated, conditions_of, load_profile
from shared.planning.operation_costs import Linear
from tests.conftest import ROOT

PROFILE = load_profile(ROOT / "deploy" / "demo" / "tiers.json")
WITHOUT = replace(PROFILE, by_samples=replace(PROFILE.by_samples, overhead=Linear(0.0)))
BATCH, BLOCKS = PROFILE.batch_size, len(PROFILE)
DIVIDED = Placement(
    version=0,
    blocks=BLOCKS,
    batch_size=BATCH,
    workers=PROFILE.names,
    tiles=(
        Tile(AGENT, 0, 1, Rows(0, BATCH)),
        Tile("near", 1, BLOCKS - 1, Rows(0, BATCH // 2)),
        Tile("gpu", 1, BLOCKS - 1, Rows(BATCH // 2, BATCH)),
        Tile("gpu", BLOCKS - 1, BLOCKS, Rows(0, BATCH)),
    ),
    sources=(Source(AGENT, Rows(0, BATCH)),),
    owners=dict.fromkeys(range(1, BLOCKS - 1), "gpu"),
)


def step_seconds(cost):
    changed = replace(PROFILE, by_samples=replace(PROFILE.by_samples, overhead=Linear(cost)))
    return Simulated(changed, conditions_of(changed)).seconds(DIVIDED)


@pytest.mark.parametrize("cost", [1e-4, 1e-3, 0.02])
def test_the_cost_is_that_with_which_the_simulator_has_the_measured_step(cost):
    found = message_seconds(WITHOUT, DIVIDED, step_seconds(cost))
    assert step_seconds(found) == pytest.approx(step_seconds(cost), rel=1e-6)


def test_a_step_that_is_quicker_than_its_parts_has_messages_that_cost_nothing():
    assert message_seconds(WITHOUT, DIVIDED, 0.9 * step_seconds(0.0)) == 0.0
