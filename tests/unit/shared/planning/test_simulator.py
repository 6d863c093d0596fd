"""The simulated pipeline against what is known without simulating."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import PlanError
from shared.planning import (
    Decision,
    LinkTrace,
    PlannedDeployment,
    Rates,
    SearchSpace,
    Trace,
    compare,
    simulate,
    steady_seconds,
    work_of,
)
from shared.planning.simulator import SimulatedPipeline
from tests.support.planning.cases import AT_8_MBIT, MBIT, profiles, rates, small_profile


def constant(link: Rates) -> LinkTrace:
    return LinkTrace(Trace.constant(link.uplink), Trace.constant(link.downlink), link.round_trip_seconds)


STEADY = constant(AT_8_MBIT)

deployments = st.builds(PlannedDeployment, st.integers(1, 8), st.integers(0, 6), st.sampled_from((2, 8, 32)))


@given(profiles(complete=True), rates, deployments)
def test_a_full_pipeline_is_at_the_bound(profile, link, deployment):
    edge_only = deployment.cut >= len(profile)
    deployment = PlannedDeployment(len(profile), deployment.staleness, 32) if edge_only else deployment
    times = work_of(profile, [deployment.cut], [deployment.bits]).phases(link, serial=deployment.staleness == 0)
    window = deployment.staleness + 1
    pipeline = SimulatedPipeline(profile, constant(link), deployment)
    for _ in range(42 * window):
        pipeline.step()
    per_step = (pipeline.settled[-1] - pipeline.settled[2 * window - 1]) / (40 * window)
    assert per_step == pytest.approx(float(steady_seconds(times, deployment.staleness)[0]), rel=1e-6)


@given(profiles(complete=True), rates, st.integers(0, 6))
def test_never_more_batches_in_flight_than_allowed(profile, link, staleness):
    pipeline = SimulatedPipeline(profile, constant(link), PlannedDeployment(1, staleness, 32))
    for _ in range(30):
        start = pipeline.next_start()
        assert sum(settled > start for settled in pipeline.settled) <= staleness
        pipeline.step()
    assert all(earlier <= later for earlier, later in itertools.pairwise(pipeline.settled))


def test_one_batch_by_hand():
    far = Rates(8 * MBIT, 8 * MBIT, round_trip_seconds=1.0)
    pipeline = SimulatedPipeline(small_profile(), constant(far), PlannedDeployment(3, 0, 32), begin=10.0)
    pipeline.step()
    assert pipeline.settled == pytest.approx([10 + 3.0 + 1.0 + 0.5 + 0.2 + 1.0 + 0.5])


def test_a_batch_waits_out_an_outage():
    stalls = Trace([0.0, 3.5, 100.0], [8 * MBIT, 0.0])
    pipeline = SimulatedPipeline(
        small_profile(), LinkTrace(stalls, Trace.constant(8 * MBIT)), PlannedDeployment(3, 0, 32)
    )
    pipeline.step()
    assert pipeline.settled == pytest.approx([100.5 + 0.2 + 1.0])  # half its feature before, half after


@pytest.mark.parametrize(("to_cut", "moved_bytes"), [(1, 2e6 + 3e6), (2, 3e6), (4, 4e6)])
def test_a_migration_drains_and_then_moves_the_blocks(to_cut, moved_bytes):
    pipeline = SimulatedPipeline(small_profile(), STEADY, PlannedDeployment(3, 3, 32))
    for _ in range(5):
        pipeline.step()
    drained = pipeline.settled[-1]
    target = PlannedDeployment(to_cut, 1, 32)
    assert pipeline.migrate(target, abandon_after_seconds=math.inf) == pytest.approx(moved_bytes / 1e6)
    assert pipeline.deployment == target
    assert pipeline.next_start() == pytest.approx(drained + moved_bytes / 1e6)


def test_a_migration_that_takes_too_long_is_given_up():
    pipeline = SimulatedPipeline(small_profile(), STEADY, PlannedDeployment(3, 3, 32))
    pipeline.step()
    drained = pipeline.settled[-1]
    assert pipeline.migrate(PlannedDeployment(1, 3, 32), abandon_after_seconds=2.0) == 2.0
    assert pipeline.deployment == PlannedDeployment(3, 3, 32)
    assert pipeline.next_start() == drained + 2.0


class Script:
    """Stands for the engine: proposes what it is told at the moments it is told, and writes down what it hears."""

    def __init__(self, proposals: dict[float, PlannedDeployment]) -> None:
        self.proposals = proposals
        self.heard: list[tuple[float, int, float, float]] = []
        self.deployments: list[tuple[float, PlannedDeployment]] = []

    def observe(self, seconds, step, uplink, downlink, round_trip_seconds):
        assert round_trip_seconds == 0.0
        self.heard.append((seconds, step, uplink, downlink))
        wanted = self.proposals.get(seconds)
        return wanted and Decision(wanted, math.nan, math.nan, math.nan, math.inf)

    def note_deployed(self, seconds, deployment):
        self.deployments.append((seconds, deployment))


def test_the_engine_hears_only_of_the_past():
    rising = Trace([0.0, *(float(i) for i in range(1, 101))], [i * MBIT for i in range(1, 101)])
    script = Script({})
    simulate(
        small_profile(),
        LinkTrace(rising, Trace.constant(8 * MBIT)),
        PlannedDeployment(3, 3, 32),
        60.0,
        script,
        begin=2.0,
    )
    assert [seconds for seconds, *_ in script.heard] == [float(i) for i in range(1, len(script.heard) + 1)]
    assert [uplink for _, _, uplink, _ in script.heard] == pytest.approx(
        [i * MBIT for i in range(1, len(script.heard) + 1)]
    )
    settled = simulate(
        small_profile(), LinkTrace(rising, Trace.constant(8 * MBIT)), PlannedDeployment(3, 3, 32), 30.0, begin=2.0
    ).steps
    assert script.heard[31][1] == int(settled)


def test_bits_and_staleness_change_without_a_pause_and_the_cut_with_one():
    script = Script({20.0: PlannedDeployment(3, 3, 8), 40.0: PlannedDeployment(2, 1, 8)})
    run = simulate(small_profile(), STEADY, PlannedDeployment(3, 1, 32), 100.0, script)
    assert [switch.deployment for switch in run.switches] == [PlannedDeployment(3, 3, 8), PlannedDeployment(2, 1, 8)]
    assert [switch.paused_seconds for switch in run.switches] == pytest.approx([0.0, 3.0])
    assert script.deployments == [(switch.seconds, switch.deployment) for switch in run.switches]


def test_steps_count_what_was_settled_and_the_one_under_way_in_part():
    run = simulate(small_profile(), STEADY, PlannedDeployment(3, 0, 32), 5.2 * 3 + 2.6)
    assert run.steps == pytest.approx(3.5)
    assert run.seconds_per_100_steps == pytest.approx(520.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_run_of_no_length_is_refused(bad):
    with pytest.raises(PlanError, match="the run lasts"):
        simulate(small_profile(), STEADY, PlannedDeployment(3, 0, 32), bad)


def test_what_was_not_measured_cannot_be_run():
    with pytest.raises(PlanError, match="nothing measured for cut 0"):
        simulate(small_profile(), STEADY, PlannedDeployment(0, 0, 32), 1.0)


def test_a_step_that_takes_no_time_is_refused():
    free = small_profile(edge_seconds=(0.0,) * 5, cloud_seconds=(0.0,) * 5)
    with pytest.raises(PlanError, match="would never end"):
        simulate(free, STEADY, PlannedDeployment(2, 0, 32), 1.0)


def test_an_unknown_planner_is_refused():
    with pytest.raises(PlanError, match='no planner "best"; there are accurate, greedy, jointdnn'):
        compare(small_profile(), STEADY, SearchSpace(), 10.0, ("best",))
