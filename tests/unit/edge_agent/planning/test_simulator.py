"""Simulated runs and the four phases of two workers, compared with results that need no simulation."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planning import (
    Decision,
    Layout,
    LinkTrace,
    Rates,
    SearchSpace,
    Setting,
    Trace,
    compare,
    loads_of,
    simulate,
)
from edge_agent.planning.runs.simulator import simulate_phases
from shared.errors import PlanError
from tests.support.planning.cases import AT_8_MBIT, MBIT, pair, profiles, rates, small_profile


def constant(link: Rates) -> LinkTrace:
    return LinkTrace(Trace.constant(link.uplink), Trace.constant(link.downlink), link.round_trip_seconds)


STEADY = constant(AT_8_MBIT)

deployments = st.tuples(st.integers(1, 8), st.integers(0, 6), st.sampled_from((2, 8, 32)))


@given(profiles(complete=True), rates, deployments)
def test_a_full_pipeline_is_at_the_bound(profile, link, deployment):
    cut, staleness, bits = deployment
    layout = pair(min(cut, len(profile)), staleness, bits, profile)
    window, step_seconds = staleness + 1, float(loads_of(profile, [layout]).seconds(over(profile, link))[0])
    settled = simulate_phases(profile, layout, constant(link), 0.0, 42 * window * step_seconds).settled
    counted = len(settled) // window * window - 2 * window
    per_step = (settled[2 * window + counted - 1] - settled[2 * window - 1]) / counted
    assert per_step == pytest.approx(step_seconds, rel=1e-6)


@given(profiles(complete=True), rates, st.integers(0, 6))
def test_a_batch_begins_once_the_one_that_is_k_plus_one_before_it_is_settled(profile, link, staleness):
    layout = pair(1, staleness, 32, profile)
    run = simulate_phases(profile, layout, constant(link), 0.0, 1e-9)
    for _ in range(30):  # the first moment at which no more begin than have begun: the next one waits for it
        begun, moment = len(run.settled), run.settled[-1]
        assert all(earlier <= later for earlier, later in itertools.pairwise(run.settled))
        waited = run.settled[begun - staleness - 1] if begun > staleness else 0.0
        assert len(simulate_phases(profile, layout, constant(link), 0.0, waited).settled) <= begun
        run = simulate_phases(profile, layout, constant(link), 0.0, math.nextafter(moment, math.inf))


def test_one_batch_by_hand():
    far = Rates(8 * MBIT, 8 * MBIT, round_trip_seconds=1.0)
    run = simulate_phases(small_profile(), pair(3, 0, 32), constant(far), 10.0, 10.0)
    assert run.settled == pytest.approx([10 + 3.0 + 1.0 + 0.5 + 0.2 + 1.0 + 0.5])


def test_a_batch_waits_out_an_outage():
    stalls = Trace([0.0, 3.5, 100.0], [8 * MBIT, 0.0])
    run = simulate_phases(small_profile(), pair(3, 0, 32), LinkTrace(stalls, Trace.constant(8 * MBIT)), 0.0, 0.0)
    assert run.settled == pytest.approx([100.5 + 0.2 + 1.0])  # half its feature before, half after


class Script:
    """A stand-in for the engine: it proposes given changes at given times, and records its reports."""

    names = ("edge", "trainer")

    def __init__(self, proposals: dict[float, Layout], abandon_after_seconds: float = math.inf) -> None:
        self.proposals, self.abandon_after_seconds = proposals, abandon_after_seconds
        self.heard: list[tuple[float, int, float, float]] = []
        self.deployments: list[tuple[float, Layout]] = []

    def observe(self, seen):
        self.heard.append((seen.seconds, seen.step, *seen.rates.values()))
        wanted = self.proposals.get(seen.seconds)
        return wanted and Decision(wanted, math.nan, math.nan, math.nan, self.abandon_after_seconds)

    def next_search(self):
        return None

    def note_deployed(self, seconds, deployment):
        self.deployments.append((seconds, deployment))


def test_the_engine_hears_only_of_the_past():
    rising = Trace([0.0, *(float(i) for i in range(1, 101))], [i * MBIT for i in range(1, 101)])
    script = Script({})
    simulate(
        small_profile(),
        [LinkTrace(rising, Trace.constant(8 * MBIT))],
        pair(3, 3, 32),
        60.0,
        script,
        begin=2.0,
    )
    assert [seconds for seconds, *_ in script.heard] == [float(i) for i in range(1, len(script.heard) + 1)]
    assert [uplink for _, _, uplink, _ in script.heard] == pytest.approx(
        [i * MBIT for i in range(1, len(script.heard) + 1)]
    )
    settled = simulate(
        small_profile(), [LinkTrace(rising, Trace.constant(8 * MBIT))], pair(3, 3, 32), 30.0, begin=2.0
    ).steps
    assert script.heard[31][1] == int(settled)


def changed(link: LinkTrace, before: Layout, after: Layout, abandon_after_seconds: float = math.inf):
    """The only change of a run, and the time at which all that had begun before it was settled."""
    script = Script({20.0: after}, abandon_after_seconds)
    run = simulate(small_profile(), [link], before, 100.0, script)
    (switch,) = run.switches
    assert script.deployments == [(switch.seconds, switch.layout)]
    return switch, simulate_phases(small_profile(), before, link, 0.0, 20.0).settled[-1]


@pytest.mark.parametrize(("to_cut", "moved_bytes"), [(1, 2e6 + 3e6), (2, 3e6), (4, 4e6)])
def test_a_change_drains_and_then_moves_the_blocks(to_cut, moved_bytes):
    switch, drained = changed(STEADY, pair(3, 3, 32), pair(to_cut, 1, 32))
    assert switch.layout == pair(to_cut, 1, 32)
    assert switch.paused_seconds == pytest.approx(moved_bytes / 1e6)
    assert switch.seconds == pytest.approx(drained + moved_bytes / 1e6)


def test_a_change_that_takes_too_long_is_given_up():
    switch, drained = changed(STEADY, pair(3, 3, 32), pair(1, 3, 32), abandon_after_seconds=2.0)
    assert switch.layout == pair(3, 3, 32)
    assert switch.paused_seconds == pytest.approx(2.0)
    assert switch.seconds == pytest.approx(drained + 2.0)


@pytest.mark.parametrize(
    ("wanted", "paused"),
    [(pair(3, 1, 8), 1.0), (pair(3, 3, 32), 1.0), (pair(2, 1, 32), 4.5), (pair(4, 1, 32), 5.5)],
)
def test_any_change_drains_and_takes_two_round_trips_and_a_move_one_more_and_its_blocks(wanted, paused):
    link = LinkTrace(STEADY.uplink, STEADY.downlink, 0.5)
    switch, drained = changed(link, pair(3, 1, 32), wanted)
    assert switch.paused_seconds == pytest.approx(paused)
    assert switch.seconds == pytest.approx(drained + paused)


def test_a_change_before_the_first_batch_waits_for_none():
    script = Script({2.0: pair(2, 1, 32)})
    run = simulate(small_profile(), [STEADY], pair(3, 1, 32), 100.0, script, begin=2.0)
    assert [switch.seconds for switch in run.switches] == pytest.approx([2.0 + 3.0])


def test_bits_and_staleness_move_nothing_and_the_cut_moves_blocks():
    script = Script({20.0: pair(3, 3, 8), 40.0: pair(2, 1, 8)})
    run = simulate(small_profile(), [STEADY], pair(3, 1, 32), 100.0, script)
    assert [switch.layout for switch in run.switches] == [pair(3, 3, 8), pair(2, 1, 8)]
    assert [switch.paused_seconds for switch in run.switches] == pytest.approx([0.0, 3.0])
    assert script.deployments == [(switch.seconds, switch.layout) for switch in run.switches]


def test_steps_count_what_was_settled_and_the_one_under_way_in_part():
    run = simulate(small_profile(), [STEADY], pair(3, 0, 32), 5.2 * 3 + 2.6)
    assert run.steps == pytest.approx(3.5)
    assert run.seconds_per_100_steps == pytest.approx(520.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_run_of_no_length_is_refused(bad):
    with pytest.raises(PlanError, match="the run lasts"):
        simulate(small_profile(), [STEADY], pair(3, 0, 32), bad)


def test_an_unmeasured_layout_cannot_be_run():
    with pytest.raises(PlanError, match="nothing measured for all blocks on trainer"):
        simulate(small_profile(), [STEADY], pair(0, 0, 32), 1.0)


def test_a_step_that_takes_no_time_is_refused():
    free = small_profile(edge_seconds=(0.0,) * 5, cloud_seconds=(0.0,) * 5)
    with pytest.raises(PlanError, match="would never end"):
        simulate(free, [STEADY], pair(2, 0, 32), 1.0)


def test_an_unknown_planner_is_refused():
    with pytest.raises(PlanError, match='no planner "best"; there are accurate, greedy, jointdnn'):
        compare(Setting(small_profile(), [STEADY], SearchSpace(), 10.0), ("best",))
