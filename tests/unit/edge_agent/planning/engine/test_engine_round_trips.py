"""The engine over a long round trip: batches in flight hide it, and a slowdown is put down to its cause."""

import pytest

from edge_agent.planning import (
    Engine,
    Linear,
    LinkTrace,
    MeasuredLink,
    ProfiledBlock,
    SearchSpace,
    Trace,
    greedy,
    simulate,
)
from edge_agent.planning.rates import Rates
from tests.support.planning.cases import MBIT, asked, pair, small_profile
from tests.support.planning.engine_cases import LIGHT, SPACE, watched

WAITING = small_profile(
    blocks=tuple(ProfiledBlock(f"b{i}", 1e5) for i in range(4)),
    edge_seconds=(None, 0.0335, 0.06, 0.09, 0.2),
    serial_edge_seconds=(None, 0.012, 0.04, 0.07, 0.15),
    cloud_seconds=(None, 0.004, 0.003, 0.002, 0.0),
    feature_bytes=(None, 16e3, 8e3, 4e3, None),
    gradient_bytes=(None, 8e3, 8e3, 4e3, None),
    encode=Linear(0.0005, 1e-9),
    min_bits=(None, 8, 8, 8, None),
    max_staleness=5,
)
"""A profile whose best step at 5 and 20 Mbit/s takes 28 ms without batches in flight, less than its replay, and 33.5 ms
with five."""


def far_link(round_trip_seconds):
    return LinkTrace(Trace.constant(5 * MBIT), Trace.constant(20 * MBIT), round_trip_seconds)


@pytest.mark.slow
def test_a_long_round_trip_is_bridged_by_batches_in_flight_and_a_short_one_is_waited_for():
    near = greedy(*asked(WAITING, Rates(5 * MBIT, 20 * MBIT), SPACE))
    assert (near.layout.tiles[0].stop, near.layout.staleness) == (1, 0)
    assert near.seconds_per_step == pytest.approx(0.028, rel=0.1)
    start = near.layout
    engine = Engine(WAITING, SPACE, start, total_steps=50_000)
    run = simulate(WAITING, [far_link(0.04)], start, 1800.0, engine)
    assert engine.layout.staleness == 5
    assert run.seconds_per_100_steps == pytest.approx(3.35, rel=0.05)
    engine = Engine(WAITING, SPACE, start, total_steps=50_000)
    assert simulate(WAITING, [far_link(0.0)], start, 1800.0, engine).switches == ()


def test_a_profile_that_knows_the_round_trip_is_believed_until_it_is_measured():
    far = WAITING.with_links({WAITING.names: MeasuredLink(round_trip_seconds=0.04)})
    start = greedy(*asked(WAITING, Rates(5 * MBIT, 20 * MBIT), SPACE)).layout
    assert watched(Engine(WAITING, SPACE, start), 60, 5 * MBIT, 20 * MBIT, 36.0) is None
    decision = watched(Engine(far, SPACE, start), 60, 5 * MBIT, 20 * MBIT, 36.0)
    assert decision is not None
    assert decision.layout.staleness == 5
    assert watched(Engine(far, SPACE, start), 60, 5 * MBIT, 20 * MBIT, 36.0, round_trip_seconds=0.0) is None


def test_a_delay_that_nobody_measured_is_put_down_to_waiting_and_not_to_what_was_never_tried():
    start = greedy(*asked(WAITING, Rates(5 * MBIT, 20 * MBIT), SPACE)).layout
    engine = Engine(WAITING, SPACE, start, total_steps=50_000)
    decision = watched(engine, 900, 5 * MBIT, 20 * MBIT, 1 / 0.068)
    assert decision is not None
    assert decision.layout.staleness == 5
    assert decision.seconds_per_step == pytest.approx(0.0335, rel=0.1)
    assert decision.staying_seconds_per_step > 1.3 * decision.seconds_per_step


def test_a_link_that_is_slower_than_measured_is_slower_for_whatever_uses_it_and_not_for_the_edge():
    free = SearchSpace((32,), allow_edge_only=False)
    engine = Engine(LIGHT, SearchSpace((32,), staleness=3, cuts=(1,)), pair(1, 3, 32), total_steps=10_000)
    assert watched(engine, 900, 8 * MBIT, 8 * MBIT, 1 / 8) is None
    engine.constrain(free)
    # The link bounds today's step at 4 s, and it takes 8. Each other cut's time on the link doubles as well, the edge's
    # time does not.
    decision = watched(engine, 60, 8 * MBIT, 8 * MBIT, 1 / 8, begin=900)
    assert decision.layout.tiles[0].stop == 3
    assert decision.seconds_per_step == pytest.approx(3.0, rel=0.05)
    assert decision.staying_seconds_per_step == pytest.approx(8.0, rel=0.2)
