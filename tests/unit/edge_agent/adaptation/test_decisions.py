"""The decision loop between measurements and the deployer, on a clock of the test."""

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge_agent.adaptation.engine_inputs import check_measured
from edge_agent.config import EngineSection
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import LinkLost, LinkUp, StepFinished
from shared.client.link_measurement import LinkRates
from shared.errors import PlanError
from shared.events.worker import WorkerDone
from shared.wire.isthmus.v1.link_pb2 import StepDone
from tests.support.planning.cases import MBIT, small_profile
from tests.support.planning.decisions import LIGHT, Deployer, Run
from tests.support.planning.engine_cases import LIGHT_BLOCKS


async def test_a_slow_link_moves_the_cut_and_the_outcome_is_shown_beside_the_prediction():
    run = Run()
    await run.watch(900, 1.0, 1 / 32)
    assert run.deployer.wanted == 3
    assert run.deployer.give_up_seconds > 0
    run.deployer.move_if_requested()
    await run.watch(120, 1.0, 1 / 8)
    assert run.shown_seconds("measured") == pytest.approx(8.0, rel=0.3)
    assert run.shown_seconds("predicted") == pytest.approx(8.0, rel=0.3)
    assert run.decisions >= 1


async def test_the_newest_change_that_came_into_force_is_kept_with_its_cause():
    run = Run()
    await run.watch(120, 40.0)
    await run.watch(900, 1.0, 1 / 32)
    assert run.loop.last_change is None, "nothing has come into force"
    run.deployer.move_if_requested()
    await run.watch(1, 1.0, 1 / 8)
    change = run.loop.last_change
    assert (change.step, change.before.cuts, change.decision.layout.cuts) == (run.statistics.steps, (1,), (3,))
    assert change.decision.reason == "link"
    assert "has 1 Mbit/s up, 1 down (before: 40 Mbit/s up" in change.decision.cause
    run.deployer.have(run.deployer.placement, 2)
    await run.watch(1, 1.0, 1 / 8)
    assert run.loop.last_change is change, "what another has changed is no change of the engine"


async def test_a_pin_is_the_cause_of_the_change_for_it():
    run = Run()
    await run.loop.pin((2,), None, None)
    await run.watch(2, 40.0)
    run.deployer.move_if_requested()
    await run.watch(1, 40.0)
    decision = run.loop.last_change.decision
    assert (decision.reason, decision.cause) == ("pin", "the layout before may not be chosen any more")


async def test_a_move_that_was_given_up_leaves_the_old_deployment_whole():
    run = Run()
    await run.watch(900, 1.0, 1 / 32)
    assert set(run.deployer.wish.codecs.values()) != {"fp32"}, "bits change with the blocks"
    run.deployer.move_if_requested(done=False)
    await run.watch(3, 1.0, 1 / 32)
    assert run.loop.last_change is None
    assert run.shown_seconds("predicted") is None, "the engine did not choose it"
    assert run.deployer.deployment == Deployer().deployment


async def test_a_shorter_window_follows_a_drop_of_the_link_sooner():
    moved = {}
    for window_seconds in (10.0, 60.0):
        run = Run(settings=EngineSection(bits=(2, 4, 8, 32), allow_edge_only=False, window_seconds=window_seconds))
        await run.watch(120, 40.0)
        await run.watch(900, 1.0, 1 / 32)
        assert run.deployer.moving
        moved[window_seconds] = run.seconds
    assert 120 < moved[10.0] < moved[60.0]


async def test_step_times_before_a_move_are_not_used_after_it():
    modelled = []
    for seconds in ((), (100.0,)):
        run = Run()
        await run.watch(900, 1.0, 1 / 32)
        for each in seconds:
            run.statistics.workers["edge"].compute.observe(each)
            run.statistics.encode.observe(each)
        run.deployer.move_if_requested()
        await run.watch(120, 1.0, 1 / 8)
        modelled.append(run.shown_seconds("modelled"))
    assert modelled[0] == modelled[1]


async def test_pins_hold_until_they_are_released():
    run = Run()
    await run.loop.pin((2,), 8, 1)
    await run.watch(2, 40.0)
    assert run.deployer.chosen_by is Chooser.ENGINE
    run.deployer.move_if_requested()
    today = run.deployer.deployment
    assert (today.edge_blocks, today.staleness, today.codec) == (2, 1, "uniform8")
    await run.watch(600, 40.0)
    assert not run.deployer.moving
    await run.loop.pin(None, None, None)
    await run.watch(2, 40.0)
    assert run.deployer.deployment.staleness == 3, "K is the profile's again"


async def test_an_impossible_pin_is_refused_and_changes_nothing():
    run = Run()
    for pin in (((0,), None, None), ((5,), None, None), (None, 33, None), (None, None, -1)):
        with pytest.raises(PlanError):
            await run.loop.pin(*pin)
    await run.watch(30, 40.0)
    assert run.deployer.deployment == Deployer().deployment


async def test_somebody_elses_change_is_noticed():
    run = Run()
    await run.watch(3, 40.0)
    run.deployer.have(run.deployer.placement, 2)
    await run.watch(1, 40.0)
    assert math.isnan(run.loop.engine.outcome().predicted_seconds_per_step), "it was not the engine that chose it"
    await run.loop.use("fixed")
    await run.watch(30, 40.0)
    assert (run.deployer.deployment.edge_blocks, run.deployer.moving) == (2, False)


async def test_while_a_move_that_another_wants_is_under_way_nothing_is_judged_or_decided():
    run = Run()
    await run.watch(60, 40.0)
    elsewhere = run.deployer.experiment.cut_at((2,), run.deployer.placement)
    run.deployer.wish = replace(elsewhere, tiles=tuple(replace(one, worker="spare") for one in elsewhere.tiles))
    run.statistics.link_rates |= {("edge", "spare"): MBIT, ("spare", "edge"): MBIT}
    await run.wait(900)
    assert run.decisions == 0
    run.deployer.wish = None
    await run.watch(60, 40.0)
    assert run.loop.engine.outcome().measured_seconds_per_step == pytest.approx(1.0, rel=0.02)
    assert run.decisions == 0


EDGE_ONLY = EngineSection(bits=(8, 32), allow_edge_only=True)


@pytest.mark.slow
async def test_on_a_bad_link_it_takes_all_blocks_where_that_is_allowed_and_gives_them_back_when_a_probe_finds_it_good():
    run = Run(settings=EDGE_ONLY)
    await run.watch_with_probes(900, 0.1, 1 / 320)
    assert (run.deployer.wanted, run.probes) == (4, 0)
    run.deployer.move_if_requested()
    assert run.deployer.deployment.staleness == 3
    run.probed = LinkRates(1e5, 1e5)
    await run.watch_with_probes(600, 0.1, 1 / 5)
    assert not run.deployer.moving
    assert run.probes == 10, "one a minute"
    run.probed = LinkRates(1e9, 1e9)
    await run.watch_with_probes(900, 0.1, 1 / 5)
    assert run.deployer.wanted < 4, "though the stream's own rate, which is of long ago, is bad as ever"
    run.deployer.move_if_requested()
    probes = run.probes
    await run.watch_with_probes(300, 1000.0)
    assert run.probes == probes, "from now on the stream says what the link carries"
    assert not run.deployer.moving, "and that is good"


def waiting_for_the_link():
    """Return a profile for which waiting is best on a short round trip, and batches in flight are best on a long one."""
    serial_seconds, cloud_seconds = (None, 0.5, 1.0, 1.5, 5.0), (None, 0.04, 0.03, 0.02, 0.0)
    return small_profile(blocks=LIGHT_BLOCKS, serial_edge_seconds=serial_seconds, cloud_seconds=cloud_seconds)


@pytest.mark.slow
async def test_a_round_trip_that_becomes_long_while_training_is_bridged_by_batches_in_flight():
    run = Run(waiting_for_the_link(), edge_blocks=1, staleness=0)
    run.round_trip_seconds = 0.001
    await run.watch(60, 1000.0, 1 / 0.605)
    assert run.deployer.deployment.staleness == 0
    run.round_trip_seconds = 1.5
    await run.watch(300, 1000.0, 1 / 2.1)
    assert run.deployer.deployment.staleness == 3
    assert not run.deployer.moving


@pytest.mark.slow
async def test_a_probe_measures_the_link_where_training_does_not():
    run = Run(waiting_for_the_link(), edge_blocks=1, staleness=0)
    run.probed = LinkRates(1e9, 1e9, 1.5)
    for second in range(300):
        run.statistics.steps = second // 2
        await run.loop.look(run, float(second))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert run.probes == 0 or second >= 40, "the first steps may say it yet"
    assert run.probes > 1
    assert run.deployer.deployment.staleness == 3
    probes = run.probes
    run.seconds = 300.0
    await run.watch_with_probes(300, 1000.0, 0.5)
    assert run.probes == probes


async def test_it_does_not_take_all_blocks_where_that_is_not_allowed():
    run = Run()
    await run.watch_with_probes(1800, 0.1, 1 / 320)
    assert run.deployer.wanted == 3


@pytest.mark.slow
async def test_a_run_that_begins_with_all_blocks_measures_the_link_by_a_probe():
    run = Run(settings=EDGE_ONLY, edge_blocks=4)
    run.probed = LinkRates(1e9, 1e9)
    run.statistics.is_flowing = True
    for second in range(900):
        run.statistics.steps = second // 5
        await run.loop.look(run, float(second))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert run.deployer.wanted < 4


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 8])
async def test_pinning_all_blocks_to_the_edge_needs_no_permission(bits):
    run = Run()
    run.probed = LinkRates(1e9, 1e9)
    await run.loop.pin((4,), bits, None)
    await run.watch_with_probes(2, 40.0)
    assert run.deployer.wanted == 4
    run.deployer.move_if_requested()
    await run.watch_with_probes(600, 40.0, 1 / 5)
    assert (run.deployer.moving, run.probes) == (False, 0), "who may not leave has nothing to ask"
    await run.loop.use("fixed")
    await run.loop.pin(None, None, None)
    await run.watch_with_probes(30, 40.0, 1 / 5)
    assert not run.deployer.moving, "it holds what there was"
    await run.loop.use("greedy")
    await run.watch_with_probes(30, 40.0, 1 / 5)
    assert run.deployer.wanted < 4


async def test_steps_that_are_done_again_count_again():
    run = Run()
    await run.watch(120, 40.0)
    done = run.loop.engine.outcome().steps
    run.went_back(100)
    await run.watch(120, 40.0)
    assert run.loop.engine.outcome().steps == pytest.approx(done + 120, abs=2)
    assert run.loop.engine.outcome().measured_seconds_per_step == pytest.approx(1.0, rel=0.02)
    assert not run.deployer.moving


async def test_while_training_rests_nothing_is_observed_or_decided():
    run = Run()
    await run.watch(10, 40.0)
    run.statistics.is_flowing = False
    await run.watch(2000, 0.1, 0.0)
    assert not run.deployer.moving


@pytest.mark.slow
async def test_a_link_that_was_away_is_no_fault_of_the_layout():
    run = Run(edge_blocks=1)
    nothing = SimpleNamespace(bits_per_second=None, seconds=None)
    stream = SimpleNamespace(estimate=SimpleNamespace(rate=nothing, round_trip=nothing))
    for _ in range(10):
        await run.watch(60, 40.0)
        await run.wait(20)  # the trainer is silent, and that is no loss yet
        run.events.emit(LinkLost("trainer"))
        await run.wait(40)
        assert run.statistics.link_rates == {("edge", "trainer"): None, ("trainer", "edge"): None}
        run.events.emit(StepFinished(0, 8, 1.0, 0.0, 0.0))  # had arrived before
        await run.wait(1)
        run.events.emit(LinkUp("trainer", stream))
        await run.wait(1)
        run.events.emit(StepFinished(1, 8, 1.0, 0.0, 0.0))
    await run.watch(60, 40.0)
    assert run.loop.engine.outcome().measured_seconds_per_step == pytest.approx(1.0, rel=0.02)
    assert (run.decisions, run.deployer.moving) == (0, False)


@pytest.mark.slow
async def test_a_link_between_trainers_that_was_away_is_no_fault_of_the_layout():
    run = Run(edge_blocks=1)
    for losses in range(1, 11):
        await run.watch(60, 40.0)
        await run.wait(40)  # nothing says why
        report = StepDone(worker="trainer", step=run.statistics.steps, links_lost=losses)
        run.events.emit(WorkerDone(report))
        await run.wait(1)
    await run.watch(60, 40.0)
    assert run.loop.engine.outcome().measured_seconds_per_step == pytest.approx(1.0, rel=0.02)
    assert (run.decisions, run.deployer.moving) == (0, False)


async def test_before_the_link_was_measured_nothing_is_decided():
    run = Run()
    for second in range(100):
        await run.loop.look(run, float(second))
    assert run.deployer.deployment == Deployer().deployment


@pytest.mark.parametrize(("codec", "counts"), [("fp32", False), ("uniform8", True)])
async def test_encoding_counts_into_t1_only_where_there_is_any(codec, counts):
    async def edge_ratio(encode_seconds):
        run = Run(codec=codec, staleness=0)
        await run.loop.pin((1,), 32 if codec == "fp32" else 8, 0)
        ratios = []
        for _ in range(15):
            run.statistics.workers["edge"].compute.observe(1.0)
            run.statistics.encode.observe(encode_seconds)
            await run.watch(1, 1000.0)
            ratios.append(run.loop.engine.prediction_ratios["edge"])
        return ratios[-1]

    assert (await edge_ratio(0.5) - await edge_ratio(0.0) > 0.1) == counts


def test_a_profile_of_another_model_is_refused():
    names = tuple(block.name for block in LIGHT.blocks)
    check_measured(LIGHT, names, 8, "p.json")
    with pytest.raises(PlanError, match=r"^p.json: the profile is of small with the blocks b0, b1"):
        check_measured(LIGHT, names[:-1], 8, "p.json")
    with pytest.raises(PlanError, match=r"^p.json: the profile is for batches of 8 and data.batch_size is 32"):
        check_measured(LIGHT, names, 32, "p.json")
