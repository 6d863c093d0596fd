"""EdgeMove: the first cut, the climb from there, and when it looks for another trainer."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.engine.prospects import DEVICE, Place
from edge_agent.planning.papers.edgemove import CYCLE_STEPS, CutClimb, EdgeMove, first_cut
from tests.support.planning.seen import seen

INF = math.inf
CUTS = np.array([1, 2, 3])


@pytest.mark.parametrize(
    ("device", "trainer", "trip", "cut"),
    [(1.0, 0.25, 0.0, 2), (1.0, 0.25, 0.25, 4), (10.0, 0.1, 0.0, 1), (0.1, 10.0, 0.0, 10), (1.0, 1.0, 9.0, 10)],
)
def test_the_first_cut_is_that_of_algorithm_1_within_1_and_all_blocks(device, trainer, trip, cut):
    assert first_cut(10, device, trainer, trip) == cut


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30, unique=True), st.integers(0, 29), st.integers(0, 9))
def test_the_climb_rests_at_a_cut_with_two_slower_neighbours(seconds, start, seed):
    cuts = list(range(1, len(seconds) + 1))
    climb = CutClimb(cuts[start % len(cuts)], cuts, random.Random(seed))
    for _ in range(3 * len(cuts)):
        climb.end_cycle(seconds[climb.cut - 1])
    assert climb.is_resting
    place = climb.cut - 1
    assert all(seconds[place] < seconds[each] for each in (place - 1, place + 1) if 0 <= each < len(seconds))


class Cycles:
    """EdgeMove among two trainers and the device, of which it is told what a step takes at each cut."""

    def __init__(self):
        self.policy = EdgeMove(CUTS, 4, (4.0, 1.0), random.Random(1))
        self.place, self.cut = None, None
        self.seconds, self.steps = 0.0, 0.0

    def cycle(self, by_cut, whole=(1.0, 2.0)):
        """Let a cycle pass, with as many looks as it takes."""
        for _ in range(2):
            now = 1.0 if self.cut is None else by_cut[self.cut]
            step_seconds = [INF, *(INF if each == INF else now for each in whole)]
            wanted = self.policy.observe(seen(self.seconds, step_seconds, self.steps, factors=(INF, *whole), layouts=3))
            if wanted is not None:
                self.place, self.cut = wanted.candidate, int(CUTS[wanted.row])
                self.policy.note_moved(self.seconds, wanted.candidate)
            if self.cut is not None:
                self.steps += CYCLE_STEPS
                self.seconds += CYCLE_STEPS * by_cut[self.cut]
        return self.place, self.cut


def test_edgemove_begins_with_the_fastest_probe_and_the_cut_of_algorithm_1():
    assert Cycles().cycle({1: 1.0, 2: 1.0, 3: 1.0}) == (1, 1)
    assert Cycles().cycle({1: 1.0, 2: 1.0, 3: 1.0}, whole=(INF, 2.0)) == (2, 1)


def test_edgemove_climbs_and_rests_and_looks_for_another_trainer_when_a_cycle_is_the_worst():
    cycles, times = Cycles(), {1: 3.0, 2: 2.0, 3: 2.5}
    for _ in range(10):
        where = cycles.cycle(times)
    assert where == (1, 2), "both neighbours were slower"
    assert cycles.cycle(times, whole=(3.0, 0.5)) == (1, 2), "no cycle was worse, so nobody is probed"
    slower = {cut: 2 * each for cut, each in times.items()}
    cycles.cycle(slower)
    cycles.cycle(slower)
    assert cycles.place == 1, "the worst time is set once nobody else is faster"
    slower = {cut: 3 * each for cut, each in times.items()}
    for _ in range(3):
        where = cycles.cycle(slower, whole=(3.0, 0.5))
    assert where[0] == 2


def test_edgemove_leaves_a_trainer_out_of_reach_at_once():
    cycles = Cycles()
    cycles.cycle({1: 1.0, 2: 1.0, 3: 1.0})
    assert cycles.cycle({1: 1.0, 2: 1.0, 3: 1.0}, whole=(INF, 2.0))[0] == 2
    assert EdgeMove(CUTS, 4, (1.0, 1.0), random.Random(0)).observe(seen(0.0, [INF, INF], factors=(INF, INF))) is None
    assert isinstance(cycles.policy.observe(seen(0.0, [INF, 1.0, INF], factors=(INF, 1.0, INF), layouts=3)), Place)


def test_all_blocks_on_the_device_are_a_cut_of_the_trainer_that_it_had():
    """The device is so much faster that Algorithm 1 keeps all blocks there, of which the neighbour is a cut with a trainer."""
    cuts = np.array([3, 4])
    policy = EdgeMove(cuts, 4, (0.1, 10.0), random.Random(1), cycle_steps=1)
    wanted = policy.observe(seen(0.0, [1.0, 1.0, 1.0], factors=(INF, 2.0, 1.0), layouts=2))
    assert wanted == Place(DEVICE, 1)
    policy.note_moved(0.0, DEVICE)
    for step in range(2):
        wanted = policy.observe(seen(1.0 + step, [1.0, 1.0, 1.0], float(step), factors=(INF, 2.0, 1.0), layouts=2))
    assert wanted == Place(2, 0), "the fastest by its probes"
