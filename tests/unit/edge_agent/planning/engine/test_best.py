"""Policies of the choice: when they move, and when they do not."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.planning import EngineConfig
from edge_agent.planning.engine.best import Best, Reach
from tests.support.examples import examples
from tests.support.planning.seen import seen

INF = math.inf


class Running:
    """A policy in a world where a step with each candidate takes what it is told, second by second."""

    def __init__(self, policy, current=0, handover=2.0):
        self.policy, self.current, self.handover = policy, current, handover
        self.seconds, self.steps, self.moves = 0.0, 0.0, []
        self.resumes_at = 0.0

    def run(self, seconds, step_seconds):
        for _ in range(seconds):
            self.seconds += 1.0
            if self.seconds > self.resumes_at:
                self.steps += 1.0 / step_seconds[self.current]
            move = self.policy.observe(seen(self.seconds, step_seconds, self.steps, self.handover))
            if move is not None and self.seconds >= self.resumes_at:
                self.moves.append((self.seconds, move.candidate))
                self.current, self.resumes_at = move.candidate, self.seconds + self.handover
                self.policy.note_moved(self.seconds, move.candidate)
        return self


def test_a_candidate_that_leads_by_less_than_the_margin_is_left_alone():
    assert not Running(Best(2, 0)).run(1200, [1.0, 0.96]).moves
    assert Running(Best(2, 0)).run(1200, [1.0, 0.94]).moves


def test_a_first_lead_has_to_last_until_it_saves_the_margin_and_the_handover():
    """A lead of half saves the two seconds of a handover, and a twentieth of the time, in eight seconds."""
    assert Running(Best(2, 0)).run(60, [1.0, 1.0 / 1.5]).moves == [(9.0, 1)]


def test_a_later_lead_is_expected_to_last_as_long_as_those_before():
    assert Running(Best(2, 0)).run(60, [1.0, 2.0]).run(60, [1.0, 1.0 / 1.5]).moves == [(61.0, 1)]
    assert not Running(Best(2, 0)).run(2, [1.0, 2.0]).run(4, [1.0, 1.0 / 1.5]).moves


def test_a_change_waits_for_the_dwell_time():
    waiting = Best(3, 0, EngineConfig(dwell_seconds=30.0))
    waiting.note_moved(0.0, 1)
    running = Running(waiting, current=1, handover=0.0).run(120, [1.0, 1.0, 0.5])
    assert running.moves == [(30.0, 2)]


def test_a_way_that_the_account_cannot_pay_waits_until_the_lead_is_proven():
    running = Running(Best(2, 0), handover=30.0).run(290, [1.0, 1.0 / 1.3])
    assert not running.moves
    assert [place for _, place in running.run(120, [1.0, 1.0 / 1.3]).moves] == [1]


def test_a_lead_that_is_proven_as_it_ends_is_followed_no_more():
    running = Running(Best(2, 1), current=1, handover=30.0)
    assert not running.run(370, [1.0 / 1.3, 1.0]).run(20, [1.0, 1.0 / 1.3]).moves


def test_a_way_that_the_stay_of_the_next_one_does_not_repay_is_not_taken():
    """All others last for twenty seconds, so that a handover to the faster of them comes again and again."""
    for handover, moves in ((9.0, 0), (1.0, 1)):
        running = Running(Best(7, 0), handover=handover)
        for second in range(200):
            steps = [1.0] + [INF] * 6
            steps[1 + second // 20 % 6] = 1.0 / 1.5
            running.run(1, steps)
        assert bool(running.moves) is bool(moves)


def test_a_candidate_out_of_reach_is_left_at_once_for_the_best_other():
    running = Running(Best(3, 0)).run(2, [1.0, 3.0, 2.0]).run(1, [INF, 3.0, 2.0])
    assert running.moves == [(3.0, 2)]


def test_nobody_in_reach_is_no_reason_to_move():
    assert Best(2, 0).observe(seen(1.0, [INF, INF])) is None


@given(st.integers(0, 199))
@settings(max_examples=examples(10), deadline=None)
def test_on_rates_that_swap_it_never_falls_far_behind_a_kept_candidate(seed):
    draw = random.Random(seed)
    period, slower, handover = draw.randint(10, 600), draw.uniform(1.1, 10.0), draw.uniform(0.2, 8.0)
    running, kept = Running(Best(2, 0), handover=handover), [0.0, 0.0]
    turn, passed = draw.random() < 0.5, 0
    while passed < 3600:
        step_seconds = [1.0, slower] if turn else [slower, 1.0]
        running.run(period, step_seconds)
        kept = [before + period / each for before, each in zip(kept, step_seconds, strict=True)]
        turn, passed = not turn, passed + period
    assert running.steps >= 0.95 * max(kept)


def test_candidates_are_expected_to_stay_as_long_as_those_that_lasted_longer():
    reach = Reach(4)
    everyone = np.array([True, True, True, True])
    reach.record(0.0, everyone)
    assert (reach.remaining(5.0) == math.inf).all(), "none was lost yet"
    reach.record(20.0, np.array([False, True, True, True]))
    reach.record(40.0, np.array([True, False, True, False]))
    assert reach.remaining(45.0).tolist() == pytest.approx([(20 + 40 + 40) / 3 - 5, 0.0, 45.0, 0.0])
    assert reach.remaining(70.0).tolist() == pytest.approx([10.0, 0.0, 70.0, 0.0])


def test_of_equals_it_goes_to_one_that_will_stay():
    """The device moves past short-lived trainers; one has been there all the time."""
    running = Running(Best(6, 0), handover=3.0)
    for second in range(400):
        steps = [INF] * 5 + [1.0]
        steps[second // 20 % 5] = 1.0
        running.run(1, steps)
    assert running.current == 5
    assert len(running.moves) <= 2
