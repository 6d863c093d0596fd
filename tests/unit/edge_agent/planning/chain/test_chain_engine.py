"""The engine of a chain over runs of the cost model: changes that it follows, changes that it ignores, and its risk."""

from dataclasses import replace

import pytest

from edge_agent.planning import Engine, EngineConfig, Observation, Reason, SearchSpace, stacked
from edge_agent.planning.engine.devices import WINDOW_SECONDS, Devices
from shared.errors import PlanError
from tests.support.planning.chain_runs import BITS, ChainTraining, hops, uniform_chain

CHAIN = uniform_chain()


@pytest.mark.first_case
@pytest.mark.parametrize("stage", range(3))
def test_a_device_that_slows_to_half_is_relieved_within_a_minute(stage):
    training = ChainTraining(CHAIN)
    training.noise = 0.03
    training.run(120)
    training.slowness[stage] = 2.0
    training.run(60)
    assert training.true_seconds(training.engine.layout) <= training.best_seconds() / 0.9
    assert {decision.reason for _, decision in training.decisions} == {Reason.DEVICE}
    assert training.engine.home == training.engine.layout


def test_a_short_run_also_follows_a_device():
    training = ChainTraining(CHAIN, total_steps=500)
    training.run(20)
    training.slowness[1] = 2.0
    training.run(60)
    assert [decision.reason for _, decision in training.decisions] == [Reason.DEVICE]


def test_a_device_that_recovers_gets_its_blocks_back():
    training = ChainTraining(CHAIN)
    start = training.engine.layout
    for slow in (2.0, 1.0):
        training.slowness[0] = slow
        training.run(100)
    assert training.engine.layout.cuts == start.cuts
    assert len(training.decisions) == 2


def test_a_device_that_is_quick_and_slow_in_turn_is_followed_three_times_in_five_minutes_without_the_account():
    training = ChainTraining(CHAIN, total_steps=500)
    for second in range(0, 240, 24):
        training.slowness[1] = 2.0 if second // 24 % 2 else 1.0
        training.run(24)
    assert [decision.reason for _, decision in training.decisions].count(Reason.DEVICE) == 3


@pytest.mark.slow
def test_ten_quiet_minutes_change_nothing():
    training = ChainTraining(CHAIN)
    training.noise = 0.08
    training.run(600)
    assert training.decisions == []


def test_a_run_that_begins_badly_is_put_right():
    training = ChainTraining(CHAIN, start=((1, 2), (32, 32)))
    training.run(120)
    assert training.true_seconds(training.engine.layout) <= 1.05 * training.best_seconds()
    assert [decision.reason for _, decision in training.decisions] == [Reason.LINK]


def test_a_link_that_drops_to_a_tenth_is_followed_within_a_good_part_of_the_window():
    # Deep features are small: as the first link becomes slow, more blocks before it pay.
    sizes = (None, *(800_000.0 / cut for cut in range(1, 12)), None)
    chain = replace(CHAIN, feature_bytes=sizes, gradient_bytes=sizes)
    training = ChainTraining(chain, staleness=5, config=EngineConfig(window_seconds=20.0))
    training.run(60)
    before = training.engine.layout
    first, second = hops(chain)
    slow = replace(first, uplink=first.uplink / 10, downlink=first.downlink / 10)
    training.rates = lambda _seconds: [slow, second]
    training.run(30)
    assert training.engine.layout.cuts[0] > before.cuts[0]
    assert {decision.reason for _, decision in training.decisions} == {Reason.LINK}
    assert training.true_seconds(training.engine.layout) <= training.best_seconds() / 0.9


@pytest.mark.slow
@pytest.mark.parametrize("period", [10, pytest.param(60, marks=pytest.mark.full)])
def test_a_link_that_oscillates_costs_little(period):
    sizes = (None, *(800_000.0 / cut for cut in range(1, 12)), None)
    chain = replace(CHAIN, feature_bytes=sizes, gradient_bytes=sizes)

    def links(seconds: float):
        share = 10.0 if seconds // period % 2 else 1.0
        first, second = hops(chain)
        return [replace(first, uplink=first.uplink / share, downlink=first.downlink / share), second]

    followed = ChainTraining(chain, staleness=5, total_steps=2_000)
    followed.rates = links
    start = followed.engine.layout
    followed.run(600)
    kept = ChainTraining(chain, staleness=5, total_steps=2_000)
    kept.rates = links
    kept.keep(600)
    assert kept.engine.layout == start
    assert followed.steps >= 0.97 * kept.steps


def test_no_move_follows_another_before_the_dwell_is_over():
    training = ChainTraining(CHAIN, start=((1, 2), (32, 32)), config=EngineConfig(dwell_seconds=90.0))
    training.run(40)
    assert len(training.decisions) == 1, "the first move has nothing to wait for"
    training.slowness[2] = 3.0
    training.run(50)
    assert len(training.decisions) == 1
    training.run(60)
    assert len(training.decisions) == 2


def test_a_pin_goes_first_and_is_released():
    training = ChainTraining(CHAIN)
    start = training.engine.layout
    training.run(10)
    training.pin((3, 7))
    training.run(10)
    assert training.engine.layout.cuts == (3, 7)
    assert training.decisions[-1][1].reason is Reason.PIN
    training.slowness[0] = 4.0
    training.run(120)
    assert training.engine.layout.cuts == (3, 7)
    training.slowness[0] = 1.0
    training.pin(None)
    training.run(120)
    assert training.engine.layout.cuts == start.cuts


@pytest.mark.parametrize("cuts", [(3,), (7, 3), (0, 3), (3, 12), (3, 3)])
def test_impossible_cuts_are_not_pinned(cuts):
    training = ChainTraining(CHAIN)
    with pytest.raises(PlanError, match=r"with 12 blocks on 3 stages there must be 2, rising, from 1 to 11"):
        training.pin(cuts)
    training.run(10)
    assert training.decisions == []


def test_a_pinned_width_is_held_whatever_the_links_carry():
    training = ChainTraining(CHAIN, start=((4, 8), (32, 32)))
    training.pin(bits=8)
    training.run(30)
    assert training.engine.layout.bits == (8, 8)
    training.pin((3, 7), 8)
    training.run(30)
    assert (training.engine.layout.cuts, training.engine.layout.bits) == ((3, 7), (8, 8))


def test_a_device_that_no_factor_brings_right_is_planned_for_by_its_new_times():
    training = ChainTraining(CHAIN)
    training.slowness[0] = 1.5
    training.run(100)
    # All blocks after the second now take four times as long on the first stage.
    training.change_stage(0, lambda first, stop: 0.05 * (stop - first + 3 * max(0, stop - max(first, 2))))
    training.run(100)
    assert training.engine.misfits == ("s0",)
    off = training.true_seconds(training.engine.layout) / training.best_seconds()
    training.engine.measured_again(training.true_chain().worker("s0"))
    assert training.engine.misfits == ()
    training.run(60)
    assert [*training.engine.prediction_ratios.values()] == pytest.approx([1.0, 1.0, 1.0], rel=0.01)
    assert training.true_seconds(training.engine.layout) <= min(off, 1.02) * training.best_seconds()


@pytest.mark.slow
def test_a_factor_is_checked_again_only_when_it_is_off():
    training = ChainTraining(CHAIN)
    training.run(30)
    for slow in (2.0, 4.0):
        training.slowness[0] = slow
        training.run(100)
    assert training.engine.misfits == ("s0",)
    training.engine.keep_factor("s0")
    training.run(100)
    assert training.engine.misfits == ()
    training.slowness[0] = 2.0
    training.run(100)
    assert training.engine.misfits == ("s0",)
    training.slowness[0] = 1.0
    training.run(100)
    assert training.engine.misfits == (), "it is as it was measured"


@pytest.mark.parametrize("busy_seconds", [2, 5])
def test_machines_that_are_busy_for_some_seconds_move_nothing_and_are_not_measured_again(busy_seconds):
    training = ChainTraining(CHAIN, start=((4, 8), (32, 32)))
    training.run(30)
    before = len(training.decisions)
    for stage in (0, 1, 2, 0):
        training.slowness[stage] = 3.0
        training.run(busy_seconds)
        training.slowness[stage] = 1.0
        training.run(30)
        assert training.engine.misfits == ()
    assert len(training.decisions) == before


def test_an_engine_with_nothing_to_choose_does_not_begin():
    chain = replace(CHAIN, min_bits=(16,) * 13)
    with pytest.raises(PlanError, match="nothing of the 12 blocks on s0, s1, s2 may be chosen"):
        Engine(chain, SearchSpace((2, 4), allow_edge_only=False), stacked(chain, (4, 8), 4, (32, 32)))


def test_an_engine_does_not_begin_where_nothing_was_measured():
    worker = CHAIN.worker("s1")
    holed = worker.replayed.copy()
    holed[4, 8] = float("nan")
    chain = CHAIN.with_worker(replace(worker, replayed=holed))
    with pytest.raises(PlanError, match="nothing measured for cuts 4, 8"):
        Engine(chain, SearchSpace(BITS), stacked(chain, (4, 8), 4, (32, 32)))


def test_a_failed_move_is_not_tried_again_at_once():
    training = ChainTraining(CHAIN, start=((1, 2), (32, 32)))

    def observe(seconds, step):
        return training.engine.observe(Observation(seconds, step))

    decision = next(one for second in range(100) if (one := observe(float(second), second)) is not None)
    assert observe(100.0, 100) is None, "a proposal waits for its answer"
    training.engine.note_deployed(101.0, training.engine.layout)
    assert decision.layout != training.engine.layout
    assert observe(102.0, 102) is None


def note(devices, steps, each, expected=1.0, seconds=WINDOW_SECONDS):
    """Note these seconds, by the worker's place; None was not reported. expected: of each."""
    work = {worker: taken for worker, taken in enumerate(each) if taken is not None}
    return devices.note(seconds, steps, work, dict.fromkeys(work, expected))


class TestDevices:
    """Two windows of some seconds and steps, more than a tenth off throughout."""

    def test_it_takes_two_windows(self):
        devices = Devices(2)
        changes = [note(devices, 3, (2.0, 1.0)) for _ in range(4)]
        assert changes == [set(), set(), set(), {0}]
        assert devices.factors.tolist() == [2.0, 1.0]

    def test_the_last_windows_error_is_relative_to_the_belief_at_that_time(self):
        devices, off = Devices(2), []
        for _ in range(3):
            note(devices, 20, (2.0, 1.05))
            off.append(devices.off.tolist())
        assert off == [[2.0, 1.05], [2.0, 1.05], [1.0, 1.05]], "then one factor has made it right"

    @pytest.mark.parametrize(("ratio", "changes"), [(1.09, False), (1.11, True), (0.91, False), (0.89, True)])
    def test_a_tenth_is_no_change(self, ratio, changes):
        devices = Devices(1)
        assert bool([note(devices, 20, (ratio,)) for _ in range(2)][-1]) is changes

    @pytest.mark.parametrize(("ratio", "factor"), [(1.05, 1.05), (0.95, 0.95), (1.11, 1.0), (0.89, 1.0)])
    def test_until_then_a_mean_follows_within_a_tenth(self, ratio, factor):
        devices = Devices(1)
        for _ in range(50):
            note(devices, 0, (ratio,))
        assert devices.factors.tolist() == pytest.approx([factor], rel=1e-3)

    def test_a_factor_that_does_not_hold_for_other_blocks_requests_a_measurement(self):
        devices, misfits = Devices(2), []
        for expected, ratio in ((1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (0.5, 3.0), (0.5, 3.0)):
            note(devices, 20, (ratio * expected, expected), expected)
            misfits.append(set(devices.misfits))
        assert misfits == [set(), set(), set(), set(), {0}]
        assert devices.factors.tolist() == [3.0, 1.0], "until then the factor of today has to do"

    def test_a_device_that_changes_again_with_the_same_blocks_requests_nothing(self):
        devices = Devices(1)
        for ratio in (2.0, 2.0, 3.0, 3.0):
            note(devices, 20, (ratio,))
        assert (devices.factors.tolist(), devices.misfits) == ([3.0], set())

    def test_a_device_that_is_as_it_was_measured_requests_nothing(self):
        devices = Devices(1)
        for expected, ratio in ((1.0, 2.0), (1.0, 2.0), (0.5, 1.05), (0.5, 1.05)):
            note(devices, 20, (ratio * expected,), expected)
        assert (devices.factors.tolist(), devices.misfits) == ([1.05], set())

    @pytest.mark.parametrize("steps_a_second", [2, 50])
    @pytest.mark.parametrize("busy_seconds", [1, 3, 5])
    def test_a_machine_that_is_busy_for_some_seconds_is_no_other_device(self, busy_seconds, steps_a_second):
        devices, changed = Devices(1), set()
        for second in range(60):
            busy = 20 <= second < 20 + busy_seconds
            changed |= note(devices, steps_a_second, (3.0 if busy else 1.0,), seconds=1.0)
        assert not changed

    @pytest.mark.parametrize("steps_a_second", [1, 2, 50])
    def test_a_device_that_becomes_slower_is_found_to_be_within_a_quarter_of_a_minute(self, steps_a_second):
        devices, changed = Devices(1), set()
        for second in range(25):
            changed |= note(devices, steps_a_second, (3.0 if second >= 10 else 1.0,), seconds=1.0)
        assert (changed, devices.factors.tolist()) == ({0}, [3.0])

    def test_a_device_that_was_measured_again_begins_with_a_factor_again(self):
        devices = Devices(1)
        for expected, ratio in ((1.0, 2.0), (1.0, 2.0), (0.5, 3.0), (0.5, 3.0)):
            note(devices, 20, (ratio * expected,), expected)
        assert devices.misfits == {0}
        devices.measured_again(0)
        assert (devices.factors.tolist(), devices.misfits) == ([1.0], set())
        for ratio in (2.0, 2.0):
            note(devices, 20, (ratio,))
        assert (devices.factors.tolist(), devices.misfits) == ([2.0], set())

    def test_a_window_between_begins_again(self):
        devices = Devices(1)
        assert not any(note(devices, 20, (ratio,)) for ratio in (2.0, 1.0, 2.0, 1.0))

    def test_nothing_is_learnt_where_nothing_was_reported_or_measured(self):
        devices = Devices(2)
        assert not any(devices.note(0.0, 20, {1: 3.0}, {0: 1.0, 1: 0.0}) for _ in range(5))
        assert devices.factors.tolist() == [1.0, 1.0]
