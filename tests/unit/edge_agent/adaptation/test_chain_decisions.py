"""The engine's decisions for a chain whose trainers leave and return."""

from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from edge_agent.adaptation.chain_decisions import ChainDecisions
from edge_agent.config import EngineSection
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.choosers import Chooser
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.errors import BusyError, ConfigError
from shared.placement import Cargo, Route, chain_workers, cuts_of
from shared.planning import stacked
from tests.support.planning.chain_runs import plan_chain, uniform_chain
from tests.support.planning.decisions import Laying

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

    @property
    def cuts(self):
        """Cuts of the same workers that were wanted."""
        return [cuts_of(one) for one in self.wanted if chain_workers(one) == chain_workers(self.placement)]

    @property
    def taken_back(self):
        """Placements of more workers that were wanted."""
        return [one for one in self.wanted if chain_workers(one) != chain_workers(self.placement)]


def run(chain=CHAIN, total_steps=1000):
    """Return the decisions of a run with all three workers, their deployer, and the status of the run."""
    statistics = Statistics(total_steps, is_flowing=True)
    registry = CollectorRegistry()
    deployer = Deployer()
    decisions = ChainDecisions(
        chain, EngineSection(bits=(8, 32)), deployer.placement, total_steps, statistics, EngineMetrics(registry)
    )
    decisions.look(deployer, 0.0)
    return decisions, deployer, statistics, registry


def without_the_middle(decisions, deployer, statistics):
    """Let the run continue without the middle worker."""
    deployer.placement = placed(LEFT, (9,))
    for second in range(1, 4):
        statistics.steps += 1
        decisions.look(deployer, float(second))


def test_the_engine_goes_on_with_the_workers_that_are_left():
    decisions, deployer, statistics, registry = run()
    without_the_middle(decisions, deployer, statistics)
    modelled = registry.get_sample_value("isthmus_engine_step_seconds", {"kind": "modelled"})
    assert modelled == pytest.approx(9.0, rel=0.05)
    assert deployer.cuts == [(6,)]


def test_a_trainer_that_is_back_is_placed_where_it_is_best():
    decisions, deployer, statistics, _ = run()
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    (wanted,) = deployer.taken_back
    assert chain_workers(wanted) == ALL
    cuts = plan_chain(CHAIN, (8, 32), 4).layout.cuts
    assert sorted(tile.first for tile in wanted.tiles)[1:] == [*cuts]


def test_a_trainer_that_is_back_and_too_slow_is_not_used():
    decisions, deployer, statistics, _ = run(CHAIN.with_worker(CHAIN.worker("s1").slowed(20.0)))
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    assert deployer.taken_back == []


def test_a_trainer_that_is_back_is_weighed_on_the_devices_and_links_of_today():
    decisions, deployer, statistics, _ = run()
    without_the_middle(decisions, deployer, statistics)
    # Any other choice is worse: over the first link, a feature takes 40 s.
    for second in range(4, 60):
        statistics.link_rates = {("s0", "s2"): 2e4, ("s2", "s0"): 2e4}
        decisions.look(deployer, float(second))
    slow = decisions.predicted_seconds
    assert slow > 30.0
    decisions.weigh(deployer, ["s1"])
    back = len(deployer.taken_back)
    assert back == 1, "by the file, the way over s1 is quicker"
    deployer.placement = placed(ALL, (4, 8))
    statistics.link_rates = {("s0", "s1"): 2e4, ("s1", "s0"): 2e4}
    for second in range(60, 120):
        decisions.look(deployer, float(second))
    assert decisions.predicted_seconds > 30.0
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    assert len(deployer.taken_back) == back, "the way over s1 is known to be as slow"


def test_a_device_that_was_slower_is_so_with_other_workers_too():
    decisions, deployer, statistics, _ = run()
    pass_windows(decisions, deployer, statistics, 3.0)
    before = decisions.predicted_seconds
    without_the_middle(decisions, deployer, statistics)
    assert decisions.predicted_seconds > 1.5 * before


def test_blocks_that_may_not_move_stay_and_the_engine_goes_on():
    decisions, deployer, statistics, _ = run()
    asked = []

    def refuse(layout, _before):
        asked.append(layout)
        raise ConfigError("not there")

    deployer.experiment.laid_out = refuse
    pass_windows(decisions, deployer, statistics, 3.0, windows=20)
    assert asked
    assert chain_workers(deployer.placement) == ALL


def test_nobody_is_taken_back_for_the_last_steps():
    decisions, deployer, statistics, _ = run(total_steps=8)
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    assert deployer.taken_back == [], "five steps win 25 s"


def test_cuts_that_are_pinned_stay_with_their_workers():
    decisions, deployer, statistics, _ = run()
    without_the_middle(decisions, deployer, statistics)
    decisions.pin((9,), None, None)
    decisions.weigh(deployer, ["s1"])
    assert deployer.taken_back == []


class Measuring:
    """A measurement of stages: each takes twice its earlier time, or the measurement fails."""

    def __init__(self, failure=None):
        self.failure, self.asked = failure, []

    async def __call__(self, name, runs):
        self.asked.append((name, runs))
        if self.failure is not None:
            raise self.failure
        return {run: 2.0 * float(CHAIN.worker(name).replayed[run]) for run in runs}


def pass_windows(decisions, deployer, statistics, ratio, windows=4):
    """Report windows of 20 steps in which the first stage takes `ratio` times its measured time. Two windows count at least."""
    worker = statistics.workers.setdefault("s0", WorkerFigures(("0:4",)))
    for _ in range(windows):
        statistics.steps += 20
        worker.compute.add(ratio * float(CHAIN.worker("s0").replayed[0, 4]))
        decisions.look(deployer, float(statistics.steps))


async def test_a_stage_that_no_factor_brings_right_is_measured_again():
    decisions, deployer, statistics, registry = run()
    measuring = Measuring()
    pass_windows(decisions, deployer, statistics, 1.5)
    await decisions.take_new_samples(measuring)
    assert measuring.asked == [], "one factor first"
    pass_windows(decisions, deployer, statistics, 2.0)
    await decisions.take_new_samples(measuring)
    ((name, runs),) = measuring.asked
    assert (name, runs[0], len(runs)) == ("s0", (0, 4), 8), "what it has today first"
    pass_windows(decisions, deployer, statistics, 2.0)
    ratio = registry.get_sample_value("isthmus_prediction_ratio", {"worker": "s0"})
    assert ratio == pytest.approx(1.0, rel=0.02), "by new times, without a factor"


@pytest.mark.parametrize("failure", [None, BusyError("no room")])
async def test_a_stage_is_not_measured_again_all_the_time(failure):
    decisions, deployer, statistics, _ = run()
    measuring = Measuring(failure)
    for ratio in (1.5, 2.0, 3.0, 2.0, 3.0, 2.0):
        pass_windows(decisions, deployer, statistics, ratio)
        await decisions.take_new_samples(measuring)
    assert [name for name, _ in measuring.asked] == ["s0"]


async def test_new_times_of_a_stage_outlive_other_workers():
    decisions, deployer, statistics, registry = run()
    pass_windows(decisions, deployer, statistics, 1.5)
    pass_windows(decisions, deployer, statistics, 2.0)
    await decisions.take_new_samples(Measuring())
    without_the_middle(decisions, deployer, statistics)
    modelled = registry.get_sample_value("isthmus_engine_step_seconds", {"kind": "modelled"})
    assert modelled == pytest.approx(18.0, rel=0.05)
