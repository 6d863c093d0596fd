"""The cost model, compared with the paper's equations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planning import Linear, Question, Rates, Times, pipeline_seconds, steady_seconds
from edge_agent.planning.families.pair import pairs
from edge_agent.planning.planners.plan import migration_seconds
from shared.errors import PlanError
from tests.support.planning.cases import AT_8_MBIT, MBIT, profiles, rates, small_profile

phase_times = st.floats(0.0, 100.0)
phases = st.builds(
    lambda round_trip, *times: Times(np.array([max(times)]), np.array([sum(times) + round_trip])),
    st.just(0.0) | phase_times,
    *[phase_times] * 4,
)
horizons = st.integers(1, 1000)


def costed(profile, cuts, bits, staleness=1):
    """Return the loads of two workers at these cuts and widths."""
    return pairs(profile, np.array(cuts), np.array(bits), np.broadcast_to(np.array(staleness), len(cuts))).loads


def test_the_phases_of_one_layout_by_hand():
    profile = small_profile()
    loads, at = costed(profile, [1, 2, 4], [8, 32, 32]), over(profile, Rates(16 * MBIT, 8 * MBIT))
    edge, cloud = loads.worker_seconds(at).values()
    carried = loads.direction_seconds(at)
    assert edge.tolist() == pytest.approx([1.0 + 4e6 * 1e-7 + 0.125, 2.0, 5.0])  # encoding below 32 bits only
    assert carried[0, 1].tolist() == pytest.approx([4e6 * 8 / 4 / 16e6, 2e6 * 8 / 16e6, 0.0])
    assert cloud.tolist() == [0.4, 0.3, 0.0]
    assert carried[1, 0].tolist() == pytest.approx([4.0, 2.0, 0.0])  # the error gradient is never compressed


def test_an_unmeasured_layout_has_no_definite_cost():
    loads = costed(small_profile(encode=None), [0, 1, 1, 4, 4], [32, 32, 8, 32, 8])
    assert loads.measured().tolist() == [False, True, False, True, True], "at edge-only the width is no matter"


def test_the_devices_of_today_scale_the_compute_times():
    profile, at = small_profile(), over(small_profile(), AT_8_MBIT)
    loads, slow = costed(profile, [1], [8]), replace(at, factors=np.array([3.0, 2.0]))
    plain_seconds, slow_seconds = loads.worker_seconds(at), loads.worker_seconds(slow)
    assert [float(slow_seconds[worker][0] / plain_seconds[worker][0]) for worker in (0, 1)] == pytest.approx([3.0, 2.0])
    assert loads.direction_seconds(slow) == loads.direction_seconds(at)


def test_time_without_replay_and_time_of_the_stream_count_where_they_were_measured():
    profile = small_profile(
        serial_edge_seconds=(None, 0.5, None, 1.5, 4.0),
        overhead=Linear(0.25, 1e-7),
        serial_overhead_seconds=0.125,
    )
    at = over(profile, AT_8_MBIT)
    replayed = costed(profile, [1, 2, 3, 4], [8, 32, 32, 32])
    assert replayed.worker_seconds(at)[0].tolist() == pytest.approx(
        [1.0 + 0.525 + 0.25 + 0.5, 2.25 + 0.4, 3.25 + 0.2, 5.0]
    )
    serial = costed(profile, [1, 2, 3, 4], [8, 32, 32, 32], staleness=0)
    assert (2 * serial.work[0] + serial.paths.waited).tolist() == pytest.approx(
        [2 * (0.5 + 0.525) + 0.125, 2 * 2.0 + 0.125, 2 * 1.5 + 0.125, 2 * 4.0]
    )


def test_without_staleness_a_step_waits_for_the_stream_if_the_batch_returns_earlier():
    profile = small_profile(
        serial_edge_seconds=(None, 0.5, 0.5, 0.5, 4.0), overhead=Linear(6.0, 0.0), serial_overhead_seconds=0.125
    )
    loads, at = costed(profile, [1, 3, 4], [32, 32, 32], staleness=0), over(profile, AT_8_MBIT)
    carried = loads.direction_seconds(at)
    away = (carried[0, 1] + loads.work[1] + carried[1, 0]).tolist()
    assert [seconds > 6.0 - 0.125 for seconds in away] == [True, False, False]
    chain, busy = 0.5 + 0.125 + away[0], 0.5 + 6.0
    assert loads.seconds(at).tolist() == pytest.approx([chain, busy, 4.0])
    times = loads.at(at)
    assert pipeline_seconds(times, 0, 3).tolist() == pytest.approx(
        [3 * chain, 2 * busy + 0.5 + 0.125 + away[1], 3 * 4.0]
    )
    assert times.filling().tolist() == pytest.approx([chain - max(busy, carried[0, 1][0]), 0.0, 0.0])


def test_a_step_waits_for_the_round_trip_once_for_all_batches_in_flight():
    near, far = Rates(8 * MBIT, 8 * MBIT), Rates(8 * MBIT, 8 * MBIT, 12.0)
    profile = small_profile()
    loads = costed(profile, [3, 3, 4], [32, 32, 32], staleness=[0, 3, 0])
    # At cut 3, T = 3, 1, 0.2, 1; at edge-only T1 = 5 and nothing crosses the link.
    assert loads.seconds(over(profile, near)).tolist() == pytest.approx([5.2, 3.0, 5.0])
    assert loads.seconds(over(profile, far)).tolist() == pytest.approx([17.2, 17.2 / 4, 5.0])
    assert pipeline_seconds(loads.at(over(profile, far)), 3, 8)[0] == pytest.approx(7 * 3.0 + 17.2 + (17.2 - 4 * 3.0))


def test_with_all_blocks_on_the_edge_a_step_waits_for_no_link():
    profile = small_profile(overhead=Linear(0.25, 1e-7), serial_overhead_seconds=0.125, max_staleness=3)
    loads = costed(profile, [4], [32], staleness=0)
    assert loads.seconds(over(profile, Rates(8 * MBIT, 8 * MBIT, 30.0))).tolist() == pytest.approx([5.0])


@given(phases, horizons)
def test_without_staleness_steps_follow_one_another(times, horizon):
    assert pipeline_seconds(times, 0, horizon) == pytest.approx(horizon * times.total)  # Eq. 10


@given(phases, horizons, st.integers(0, 5))
def test_with_enough_staleness_only_the_longest_module_counts(times, horizon, more):
    full = (horizon - 1) * times.longest + times.total  # Eq. 11
    assert pipeline_seconds(times, horizon - 1 + more, horizon) == pytest.approx(full)


@given(phases, horizons, st.integers(0, 10))
def test_more_staleness_never_costs_time(times, horizon, staleness):
    assert pipeline_seconds(times, staleness + 1, horizon) <= pipeline_seconds(times, staleness, horizon) * (1 + 1e-12)


@given(phases, st.integers(0, 6))
def test_an_endless_horizon_takes_the_steady_time(times, staleness):
    horizon = 10_000 * (staleness + 1)
    assert pipeline_seconds(times, staleness, horizon) / horizon == pytest.approx(
        steady_seconds(*times, staleness), rel=1e-3, abs=0.1
    )


@given(profiles(), rates, st.data())
def test_blocks_go_up_when_they_leave_the_edge_and_down_when_they_come(profile, link, data):
    start, end = (data.draw(st.integers(first, len(profile))) for first in (1, 0))
    moved_bytes = sum(block.bytes for block in profile.blocks[min(start, end) : max(start, end)])
    rate = link.uplink if end < start else link.downlink
    expected = moved_bytes * 8 / rate + (link.round_trip_seconds if start != end else 0.0)
    tolerance = 1e-6 * sum(block.bytes for block in profile.blocks) * 8 / rate + 1e-12  # a move of no bytes is one, too
    assert float(
        migration_seconds(Question(profile, from_cut=start), np.array([end]), over(profile, link))[0]
    ) == pytest.approx(expected, abs=tolerance)


def test_a_migration_by_hand():
    profile, link = small_profile(), Rates(8 * MBIT, 16 * MBIT)
    moved = migration_seconds(Question(profile, from_cut=2), np.array([1, 2, 3, 4]), over(profile, link))
    assert moved.tolist() == pytest.approx([2.0, 0.0, 1.5, 3.5])


@pytest.mark.parametrize("bad", [-0.001, math.nan, math.inf])
def test_an_impossible_round_trip_is_refused(bad):
    with pytest.raises(PlanError, match=r"the round trip is .* must be 0 or more and finite"):
        Rates(1.0, 1.0, bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_of_zero_is_refused(bad):
    for uplink, downlink, name in ((bad, 1.0, "uplink"), (1.0, bad, "downlink")):
        with pytest.raises(PlanError, match=f"the {name} rate is .* must be above 0"):
            Rates(uplink, downlink)
