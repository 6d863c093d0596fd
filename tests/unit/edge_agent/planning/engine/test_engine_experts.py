"""The engine and its experts: it follows an expert only with a proof and with the means to pay."""

import dataclasses
import math

import pytest

from benchmarks.rivals.pair import over
from edge_agent.planning import (
    Engine,
    ProfiledBlock,
    SearchSpace,
    loads_of,
)
from edge_agent.planning.rates import Rates
from tests.support.planning.cases import MBIT
from tests.support.planning.engine_cases import QUICK, SPACE, best_for, between


def on_a_wave(engine, seconds, answers=True, until=math.inf):
    """Observe 60 s of 60 Mbit/s and 60 s of 5 in turn, and 5 for good from `until` on. Each deployment does as it should.

    Yields each second and its decision, which is taken at once.
    """
    done = 0.0
    for second in range(seconds):
        mbit = 60.0 if second // 60 % 2 == 0 and second < until else 5.0
        rates = Rates(mbit * MBIT, mbit * MBIT)
        done += 1.0 / float(loads_of(QUICK, [engine.layout]).seconds(over(QUICK, rates))[0])
        decision = engine.observe(between(second, int(done), rates))
        if decision is not None and answers:
            engine.note_deployed(float(second), decision.layout)
        yield second, decision


@pytest.mark.full
def test_an_experts_request_is_done_only_if_the_account_can_pay_the_move():
    heavy = dataclasses.replace(QUICK, blocks=tuple(ProfiledBlock(f"b{i}", 1e6) for i in range(4)))
    moves = []
    for total_steps in (4_000, 9_000, 40_000):
        engine = Engine(heavy, SPACE, best_for(heavy, 60.0), total_steps=total_steps)
        moves += [each for _, each in on_a_wave(engine, 1800) if each is not None and each.migration_seconds > 0.0]
    assert moves
    assert all(move.abandon_after_seconds >= move.migration_seconds for move in moves)


@pytest.mark.slow
def test_a_pin_that_comes_while_a_change_is_under_way_is_kept_after_it():
    engine = Engine(QUICK, SPACE, best_for(QUICK, 60.0), total_steps=40_000)
    decided = next(
        each
        for _, each in on_a_wave(engine, 1800, answers=False)
        if each is not None and each.layout.tiles[0].stop == 3
    )
    engine.constrain(SearchSpace(cuts=(3,)))
    engine.note_deployed(1800.0, decided.layout)
    for second in range(1801, 3600):
        mbit = 60.0 if second // 60 % 2 == 0 else 5.0
        decision = engine.observe(between(second, second * 10, Rates(mbit * MBIT, mbit * MBIT)))
        assert decision is None or decision.layout.tiles[0].stop == 3
        if decision is not None:
            engine.note_deployed(float(second), decision.layout)


@pytest.mark.slow
def test_where_the_link_has_changed_for_good_the_place_that_an_expert_found_becomes_home():
    engine = Engine(QUICK, SPACE, best_for(QUICK, 60.0), total_steps=40_000)
    began_at = engine.home
    for _ in on_a_wave(engine, 1500, until=420):
        pass
    assert engine.layout.tiles[0].stop == 3
    assert engine.home == engine.layout != began_at


@pytest.mark.slow
def test_an_expert_that_does_not_keep_what_it_promises_is_left_for_good():
    start = best_for(QUICK, 60.0)
    engine = Engine(QUICK, SPACE, start, total_steps=40_000)
    done = lost = 0.0
    left_at = []
    for second in range(3600):
        mbit = 60.0 if second // 60 % 2 == 0 else 5.0
        rates = Rates(mbit * MBIT, mbit * MBIT)
        home_steps = 1.0 / float(loads_of(QUICK, [start]).seconds(over(QUICK, rates))[0])
        if engine.layout == start:
            done += home_steps
        else:  # no step is done there, though the model predicts some
            lost += home_steps
        decision = engine.observe(between(second, int(done), rates))
        if decision is not None:
            left_at += [second] if engine.layout == start else []
            engine.note_deployed(float(second), decision.layout)
    assert left_at
    assert max(left_at) < 1800
    assert engine.layout == start
    # The account's hundredth, and as much again for the delay of observation.
    assert lost <= 0.02 * (done + lost)
