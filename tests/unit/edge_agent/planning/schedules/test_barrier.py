"""Strategies with a barrier: the cost is what a step takes when it is played, and no rival is better than dynacomm."""

import random
from itertools import pairwise

import pytest

from edge_agent.planner_names import STRATEGY_NAMES
from edge_agent.planning.schedules import BACKWARD, FORWARD, PULL, PUSH, STRATEGIES
from shared.errors import PlanError
from tests.support.planning.schedules import drawn_seconds, layers

BARRIERS = [name for name in STRATEGY_NAMES if name != "flow"]


def drawn_layers(draw, count):
    pulls, forwards, message = drawn_seconds(draw, count)
    pushes, backwards, _ = drawn_seconds(draw, count)
    return layers(pulls, forwards, backwards, pushes, message_seconds=message)


def test_the_names_are_those_of_the_command_line():
    assert tuple(STRATEGIES) == STRATEGY_NAMES


@pytest.mark.parametrize("strategy", BARRIERS)
def test_the_seconds_are_those_of_the_step_that_is_played(strategy):
    draw = random.Random(4)
    for _ in range(50):
        one = drawn_layers(draw, draw.randint(1, 9))
        schedule = STRATEGIES[strategy](one)
        ends = {kind: [event.end for event in schedule.events if event.kind == kind] for kind in (FORWARD, PUSH)}
        assert max(ends[FORWARD]) == pytest.approx(schedule.forward_seconds)
        assert max(ends[PUSH]) == pytest.approx(schedule.step_seconds)


@pytest.mark.parametrize("strategy", BARRIERS)
def test_a_step_that_is_played_breaks_no_rule(strategy):
    draw = random.Random(5)
    for _ in range(50):
        one = drawn_layers(draw, draw.randint(1, 9))
        schedule = STRATEGIES[strategy](one)
        at = {(event.kind, event.layer): event for event in schedule.events}
        assert len(at) == len(schedule.events) == 4 * len(one)
        for layer in range(len(one)):
            assert at[PULL, layer].end <= at[FORWARD, layer].begin
            assert at[BACKWARD, layer].end <= at[PUSH, layer].begin
        computing = [event for event in schedule.events if event.kind in (FORWARD, BACKWARD)]
        assert all(before.end <= after.begin for before, after in pairwise(computing))
        assert [event.layer for event in computing] == [*range(len(one)), *reversed(range(len(one)))]
        for kind, segments in ((PULL, schedule.pull_segments), (PUSH, schedule.push_segments)):
            messages = sorted({(event.begin, event.end) for event in schedule.events if event.kind == kind})
            assert all(before[1] <= after[0] for before, after in pairwise(messages))
            assert sorted(layer for first, stop in segments for layer in range(first, stop)) == [*range(len(one))]


def test_no_rival_is_better_than_dynacomm():
    draw = random.Random(6)
    for _ in range(300):
        one = drawn_layers(draw, draw.randint(1, 12))
        seconds = {name: STRATEGIES[name](one).step_seconds for name in BARRIERS}
        assert seconds["dynacomm"] <= min(seconds.values()) * (1 + 1e-12) + 1e-12


def test_pulls_come_from_the_first_layer_on_and_pushes_go_from_the_last():
    schedule = STRATEGIES["layerwise"](layers([1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], message_seconds=0.5))
    assert schedule.pull_segments == ((0, 1), (1, 2), (2, 3))
    assert schedule.push_segments == ((2, 3), (1, 2), (0, 1))
    assert (schedule.forward_seconds, schedule.backward_seconds) == (5.5, 5.5)


def test_sequential_hides_nothing():
    schedule = STRATEGIES["sequential"](layers([1, 2], [3, 4], [5, 6], [7, 8], message_seconds=0.5))
    assert schedule.pull_segments == schedule.push_segments == ((0, 2),)
    assert schedule.step_seconds == 3 + 7 + 11 + 15 + 2 * 0.5


def test_ibatch_chooses_what_the_greedy_algorithms_of_the_paper_choose():
    """Worked by hand. Forward: [0, 2) is the most computing that a message behind it outlasts, [2, 3) the shortest that does.
    Backward: behind the last layer alone, 1.25 s hide one layer's computing and 2.5 s both that are left."""
    schedule = STRATEGIES["ibatch"](
        layers([1, 1, 3, 1], [1, 2, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], message_seconds=0.25)
    )
    assert schedule.pull_segments == ((0, 2), (2, 3), (3, 4))
    assert schedule.push_segments == ((3, 4), (2, 3), (0, 2))


@pytest.mark.parametrize("members", [0, -1, 1025])
def test_a_group_of_no_members_or_of_too_many_is_refused(members):
    with pytest.raises(PlanError, match=f"the group has {members} members; it must have 1 to 1024"):
        layers([1], [1], [1], [1]).among(members)


def test_members_share_the_link_and_not_the_cost_of_a_message():
    alone = layers([1, 2], [3, 4], [5, 6], [7, 8], message_seconds=0.5)
    one_of_eight = alone.among(8)
    assert one_of_eight.pull_seconds == (8, 16)
    assert one_of_eight.push_seconds == (56, 64)
    assert (one_of_eight.message_seconds, one_of_eight.forward_seconds) == (0.5, (3, 4))
