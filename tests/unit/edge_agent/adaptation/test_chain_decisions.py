"""The engine's decisions for a chain whose trainers leave and return."""

import asyncio
import math
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.adaptation.jobs import Jobs
from edge_agent.adaptation.link_probe import LinkProbe
from edge_agent.adaptation.measuring import Measuring, TimedStep
from edge_agent.config import EngineSection
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.planning import Engine, stacked
from edge_agent.training.choosers import Chooser
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.client.link_measurement import LinkRates
from shared.errors import BusyError, ConfigError
from shared.placement import Cargo, Route, chain_workers, cuts_of
from tests.support.planning.chain_runs import plan_chain, uniform_chain
from tests.support.planning.decisions import Laying, engine_of

CHAIN = uniform_chain(block_seconds=1.0)
ALL, LEFT = ("s0", "s1", "s2"), ("s0", "s2")


def placed(names, cuts, staleness=4):
    """Return a deployment in force with these workers."""
    placement = stacked(CHAIN, cuts, staleness, (32,) * len(cuts), names).placement()
    return replace(placement, codecs={Route(*hop, Cargo.FEATURE): "fp32" for hop in pairwise(names)})


class Deployer:
    """A deployer that records the requests it gets."""

    def __init__(self):
        self.placement = placed(ALL, (4, 8))
        self.moving = False
        self.experiment = Laying()
        self.wanted = []

    def want(self, placement, by, _give_up_seconds=None):
        assert by is Chooser.ENGINE
        self.wanted.append(placement)
        return True

    @property
    def cuts(self):
        """Cuts of the same workers that were wanted."""
        return [cuts_of(one) for one in self.wanted if chain_workers(one) == chain_workers(self.placement)]

    @property
    def taken_back(self):
        """Placements of more workers that were wanted."""
        return [one for one in self.wanted if len(chain_workers(one)) > len(chain_workers(self.placement))]


class Run:
    """The decisions of a run with all three workers, their deployer, and the figures of the run."""

    def __init__(self, chain=CHAIN, total_steps=1000):
        self.statistics, self.registry = Statistics(total_steps, is_flowing=True), CollectorRegistry()
        self.statistics.link_rates = {("s0", name): 4e7 for name in ALL[1:]} | {(name, "s0"): 4e7 for name in ALL[1:]}
        self.deployer = Deployer()
        self.members = SimpleNamespace(left_out=[])
        self.session = SimpleNamespace(members=self.members)
        engine = engine_of(chain, EngineSection(bits=(8, 32)), self.deployer.placement, total_steps)
        self.probes = 0
        probes = {name: LinkProbe(self._probe) for name in ALL[1:]}
        self.loop = DecisionLoop(engine, self.statistics, EngineMetrics(self.registry), probes)
        measuring = Measuring(self.loop.engine, asyncio.Lock(), self._note, lambda: self.clock_seconds)
        self.jobs, self.measuring = Jobs(self.loop.engine, asyncio.Lock(), measuring), measuring
        self.clock_seconds = 0.0
        self.waited_seconds = 0.0
        self._looked = False

    async def _probe(self):
        self.probes += 1
        return LinkRates()

    @property
    def modelled(self):
        return self.registry.get_sample_value("isthmus_engine_step_seconds", {"kind": "modelled"})

    async def look(self, *seconds):
        for each in seconds if self._looked else (0, *seconds):
            self._looked = True
            await self.loop.look(self, float(each))

    async def without_the_middle(self):
        """Let the run continue without the middle worker."""
        await self.look()
        self.deployer.placement, self.members.left_out = placed(LEFT, (9,)), ["s1"]
        for second in range(1, 4):
            self.statistics.steps += 1
            await self.look(second)

    async def take_back(self, *names):
        await self.jobs.take_back(self.deployer, names, self.loop.apply)

    def _note(self, waited_seconds):
        self.waited_seconds += waited_seconds

    async def pass_windows(self, ratio, windows=4):
        """Report windows of 20 steps in which the first stage takes `ratio` times its measured time. Two windows count at
        least."""
        first = cuts_of(self.deployer.placement)[0]
        worker = self.statistics.workers.setdefault("s0", WorkerFigures(()))
        for _ in range(windows):
            self.statistics.steps += 20
            worker.compute.observe(ratio * float(CHAIN.worker("s0").replayed[0, first]))
            await self.look(self.statistics.steps)

    async def until_a_misfit(self):
        """Let the first stage be half as slow again, and with other blocks twice as slow."""
        await self.pass_windows(1.5)
        assert self.loop.engine.misfits == (), "one factor first"
        self.deployer.placement = placed(ALL, (2, 8))
        await self.pass_windows(2.0)
        assert self.loop.engine.misfits == ("s0",)

    async def measure(self, timing, looks=60):
        """Let so many looks pass, between which there is time to measure."""
        for _ in range(looks):
            await self.pass_windows(2.0, windows=1)
            self.clock_seconds += 1000.0
            await self.measuring.go_on(timing.timers)


async def test_the_engine_goes_on_with_the_workers_that_are_left():
    run = Run()
    await run.without_the_middle()
    assert run.modelled == pytest.approx(9.0, rel=0.05)
    await run.look(*range(4, 30))
    assert run.deployer.cuts[0] == (6,)


async def test_a_trainer_that_is_back_is_placed_where_it_is_best():
    run = Run()
    await run.without_the_middle()
    await run.take_back("s1")
    (wanted,) = run.deployer.taken_back
    assert chain_workers(wanted) == ALL
    cuts = plan_chain(CHAIN, (8, 32), 4).layout.cuts
    assert sorted(tile.first for tile in wanted.tiles)[1:] == [*cuts]


async def test_what_grows_with_a_profile_is_worked_out_beside_the_event_loop(monkeypatch):
    run, threads = Run(), []
    for name in ("constrain", "measured_again", "weigh", "note_deployed", "observe"):
        method = getattr(Engine, name)

        def noted(*given, method=method):
            threads.append(threading.current_thread())
            return method(*given)

        monkeypatch.setattr(Engine, name, noted)
    await run.until_a_misfit()
    await run.measure(Timing())
    await run.without_the_middle()
    await run.loop.use("fixed")
    await run.loop.pin((6,))
    assert len(threads) >= 5
    assert threading.main_thread() not in threads


async def test_a_trainer_that_is_back_and_too_slow_is_not_used():
    run = Run(CHAIN.with_worker(CHAIN.worker("s1").slowed(20.0)))
    await run.without_the_middle()
    await run.take_back("s1")
    assert run.deployer.taken_back == []


def unmeasured(chain, name, *run):
    """Return a profile without the seconds of one run of blocks."""
    worker = chain.worker(name)
    table = worker.replayed.copy()
    table[run] = math.nan
    return chain.with_worker(replace(worker, replayed=table))


@pytest.mark.parametrize(
    ("seconds_per_step", "back", "cuts"), [(20, ["s1"], (4, 8)), (20, [], (6,)), (2, ["s1"], None)]
)
async def test_a_layout_that_was_never_measured_is_weighed_by_the_seconds_of_its_steps(seconds_per_step, back, cuts):
    run = Run(unmeasured(CHAIN, "s2", 9, 12))
    await run.without_the_middle()
    assert run.loop.engine.is_elsewhere
    for second in range(4, 204):
        run.statistics.steps += second % seconds_per_step == 0
        await run.look(second)
    assert run.deployer.wanted == []
    await run.take_back(*back)
    assert [cuts_of(one) for one in run.deployer.wanted] == ([] if cuts is None else [cuts])
    if cuts is not None:
        run.deployer.placement = placed(ALL if back else ["s0", "s2"], cuts)
        run.members.left_out = [] if back else ["s1"]
        await run.look(204)
        change = run.loop.last_change
        assert (change.before.cuts, change.decision.layout.cuts) == ((9,), cuts), "recovery chose what it replaces"


async def test_a_trainer_that_is_back_is_weighed_on_the_devices_and_links_of_today():
    run = Run()
    await run.without_the_middle()
    # Any other choice is worse: over the first link, a feature takes 40 s.
    await run.loop.pin((9,))
    run.statistics.link_rates = {("s0", "s2"): 2e4, ("s2", "s0"): 2e4}
    await run.look(*range(4, 60))
    assert run.loop.engine.predicted_seconds > 30.0
    await run.loop.pin()
    await run.take_back("s1")
    assert len(run.deployer.taken_back) == 1, "by the file, the way over s1 is quicker"
    run.deployer.placement, run.members.left_out = placed(ALL, (4, 8)), []
    await run.look(60)
    await run.loop.pin((4, 8))
    run.statistics.link_rates = {("s0", "s1"): 2e4, ("s1", "s0"): 2e4}
    await run.look(*range(61, 360))
    assert run.loop.engine.predicted_seconds > 30.0
    await run.loop.pin()
    await run.without_the_middle()
    run.deployer.wanted.clear()
    await run.take_back("s1")
    assert run.deployer.wanted == [], "the way over s1 is known to be as slow"


async def test_a_device_that_was_slower_is_so_with_other_workers_too():
    run = Run()
    await run.pass_windows(3.0)
    before = run.loop.engine.predicted_seconds
    await run.without_the_middle()
    assert run.loop.engine.predicted_seconds > 1.5 * before


async def test_blocks_that_may_not_move_stay_and_the_engine_goes_on():
    run = Run()
    asked = []

    def refuse(layout, _before):
        asked.append(layout)
        raise ConfigError("not there")

    run.deployer.experiment.laid_out = refuse
    await run.pass_windows(3.0, windows=20)
    assert asked
    assert chain_workers(run.deployer.placement) == ALL


async def test_nobody_is_taken_back_for_the_last_steps():
    run = Run(total_steps=8)
    await run.without_the_middle()
    await run.take_back("s1")
    assert run.deployer.taken_back == [], "five steps win 25 s"


async def test_cuts_that_are_pinned_stay_with_their_workers():
    run = Run()
    await run.without_the_middle()
    await run.loop.pin((9,), None, None)
    await run.take_back("s1")
    assert run.deployer.taken_back == []


@pytest.mark.parametrize("bits", [(8, 32), (32, 8)])
async def test_the_fixed_planner_holds_the_widths_of_each_link(bits):
    run = Run()
    layout = stacked(CHAIN, (4, 8), 4, bits)
    run.deployer.placement = Laying().laid_out(layout, run.deployer.placement)
    await run.look(1)
    await run.loop.use("fixed")
    run.statistics.link_rates |= {("s0", "s1"): 1e5, ("s1", "s2"): 1e5}
    await run.look(*range(2, 200))
    assert run.deployer.wanted == []


@pytest.mark.parametrize("held", [True, False])
async def test_a_chain_alone_asks_what_the_links_carry_only_where_it_may_leave(held):
    run = Run()
    run.deployer.placement = placed(("s0",), ())
    await run.look(1)
    if held:
        await run.loop.use("fixed")
    await asyncio.sleep(0)
    asked = run.probes
    for second in range(2, 90):
        await run.look(second)
        await asyncio.sleep(0)
    assert (run.probes == asked) == held


class Timing:
    """Timers of steps: each takes twice its earlier time, or fails."""

    def __init__(self, failure=None):
        self.failure, self.asked = failure, []

    @asynccontextmanager
    async def timers(self, name):
        async def timer(*run):
            self.asked.append((name, run))
            if self.failure is not None:
                raise self.failure
            seconds = 2.0 * float(CHAIN.worker(name).replayed[run])
            return TimedStep(seconds, seconds)

        yield timer


async def test_a_stage_that_no_factor_brings_right_is_measured_again():
    run, timing = Run(), Timing()
    await run.until_a_misfit()
    await run.measure(timing)
    assert timing.asked[0] == ("s0", (0, 2)), "what it has today first"
    assert {name for name, _ in timing.asked} == {"s0"}
    assert run.waited_seconds == sum(2.0 * float(CHAIN.worker("s0").replayed[blocks]) for _, blocks in timing.asked)
    ratio = run.registry.get_sample_value("isthmus_prediction_ratio", {"worker": "s0"})
    assert ratio == pytest.approx(1.0, rel=0.02), "by new times, without a factor"
    assert run.loop.engine.question.profile.worker("s0") is not CHAIN.worker("s0")


@pytest.mark.parametrize("failure", [None, BusyError("no room")])
async def test_a_stage_is_not_measured_again_all_the_time(failure):
    run, timing = Run(), Timing(failure)
    await run.until_a_misfit()
    await run.measure(timing)
    asked = len(timing.asked)
    assert asked
    for first, ratio in ((4, 3.0), (2, 1.5), (4, 3.0)):
        run.deployer.placement = placed(ALL, (first, 8))
        await run.pass_windows(ratio)
        await run.measuring.go_on(timing.timers)
    assert len(timing.asked) == asked


async def test_new_times_of_a_stage_outlive_other_workers():
    run = Run()
    await run.until_a_misfit()
    await run.measure(Timing())
    run.deployer.placement = placed(ALL, (4, 8))
    await run.without_the_middle()
    assert run.modelled == pytest.approx(18.0, rel=0.05)


async def test_links_that_nobody_could_measure_are_taken_as_in_the_profile():
    run = Run()
    run.statistics.link_rates = dict.fromkeys(run.statistics.link_rates)
    await run.pass_windows(3.0)
    assert run.deployer.wanted, "the device that became slow is relieved"
