"""Layers of the real runs: their blocks sleep and weigh as the file says, and tables hold what was measured to the goals."""

import json

import pytest
import torch

from benchmarks.groups.bits import MIX, bits_goal
from benchmarks.groups.links import ALIKE, MIXES, errors, goals, scale_goal
from benchmarks.groups.measured import Measured, MeasuredGroup, coded_name, measured_table, peer_name, simulated_seconds
from benchmarks.groups.sleeping import amounts, layers_document, rates
from benchmarks.networks import weighted_blocks
from benchmarks.support.report import Spread
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.schedules import STRATEGIES, bound_seconds, parse_layers


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{mix.name} at {mix.megabits}")
def test_a_mix_is_a_file_of_layers_of_its_ratio_and_rate(mix):
    layers = mix.layers
    assert parse_layers(json.loads(json.dumps(layers_document(layers))), "mix") == layers
    computing = sum(layers.forward_seconds) + sum(layers.backward_seconds)
    assert sum(layers.push_seconds) == pytest.approx(mix.ratio * computing, rel=1e-4)
    assert rates(layers) == pytest.approx((mix.megabits * 1e6,) * 2)


def test_blocks_have_weights_of_their_bytes_and_a_gradient_each():
    layers = MIXES[0].layers
    blocks = weighted_blocks([(0.0, 0.0)] * len(layers), layers.bytes)
    assert len(amounts(layers)) == len(blocks) == len(layers)
    blocks(torch.ones(2, 3, 1, 1)).sum().backward()
    for block, size in zip(blocks, layers.bytes, strict=True):
        weight, *rest = block.parameters()
        assert weight.nbytes == size
        assert all(one.grad is not None for one in (weight, *rest))


def test_flow_of_whole_blocks_is_between_the_bound_and_blocks_one_after_the_other():
    for mix in MIXES:
        seconds = simulated_seconds(FLOW, mix.layers)
        assert bound_seconds(mix.layers) <= seconds <= STRATEGIES[LAYERWISE](mix.layers).step_seconds
        assert simulated_seconds(DYNACOMM, mix.layers) == STRATEGIES[DYNACOMM](mix.layers).step_seconds


def a_group(mix, members=2, **seconds: float) -> MeasuredGroup:
    """A group whose every step took so long."""
    rows = [
        Measured(name, Spread.of([taken]), taken * 1.1 if name in STRATEGIES else None, taken)
        for name, taken in seconds.items()
    ]
    return MeasuredGroup(mix.layers, members, rows)


def test_goals_are_missed_where_they_are_missed():
    mix = next(each for each in MIXES if each.ratio == 2.0)
    bound = bound_seconds(mix.layers)
    seconds = {
        FLOW: 1.2 * bound,
        DYNACOMM: 1.5 * bound,
        SEQUENTIAL: 2.0 * bound,
        IBATCH: 1.6 * bound,
        LAYERWISE: 1.49 * bound,
    }
    group = a_group(mix, **seconds, **{peer_name(1): 1.1 * bound, peer_name(25): 3 * bound})
    kept = {goal.what: goal.kept for goal in goals(mix, group)}
    assert kept == {
        "flow over the bound": False,
        "dynacomm over the best other barrier": True,
        "dynacomm over flow": False,
        "sequential over flow": True,
        "flow over DDP": False,
    }
    assert errors([group]) == pytest.approx([0.1] * 5)
    assert measured_table(group, "a group").row_count == 7


@pytest.mark.parametrize(("seconds", "kept"), [(0.33, True), (0.34, False)])
def test_eight_bits_are_to_be_three_times_as_fast_as_exact_steps(seconds, kept):
    goal = bits_goal(a_group(MIX, **{FLOW: 1.0, coded_name(FLOW, "uniform8"): seconds}))
    assert goal.kept == kept


def test_four_members_that_take_as_long_as_one_are_four_times_as_fast():
    alike = next(mix for mix in MIXES if mix.name == ALIKE)
    goal = scale_goal(a_group(alike, 1, flow=1.0), a_group(alike, 4, flow=1.0))
    assert (goal.found, goal.kept) == (4.0, True)
    assert not scale_goal(a_group(alike, 1, flow=1.0), a_group(alike, 4, flow=1.2)).kept
