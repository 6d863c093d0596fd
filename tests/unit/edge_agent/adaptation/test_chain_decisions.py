"""The decisions of a chain where trainers go and come back, between measurements and the deployer."""

from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from edge_agent.adaptation.chain_decisions import ChainDecisions
from edge_agent.config import EngineSection
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.statistics import Statistics
from shared.placement import Cargo, Route, chain_workers, parse_placement
from shared.planning.chain import Partition, chain_placement, plan_chain
from tests.support.planning.chain_runs import uniform_chain

CHAIN = uniform_chain(block_seconds=1.0)
ALL, LEFT = ("s0", "s1", "s2"), ("s0", "s2")


def placed(names, cuts, staleness=4):
    """What is in force with these workers."""
    placement = chain_placement(CHAIN.among(names), Partition(cuts, (32,) * len(cuts)), staleness)
    return replace(placement, codecs={Route(*hop, Cargo.FEATURE): "fp32" for hop in pairwise(names)})


class Deployer:
    """Remembers what it is asked for."""

    def __init__(self):
        self.placement = placed(ALL, (4, 8))
        self.moving = False
        self.documents, self.cuts = [], []

    def place(self, document):
        self.documents.append(document)

    def move_cuts(self, cuts, _codecs):
        self.cuts.append(cuts)


def run(chain=CHAIN, total_steps=1000):
    """The decisions of a run on all three, their deployer, and what is shown of it."""
    statistics = Statistics(total_steps, is_flowing=True)
    registry = CollectorRegistry()
    deployer = Deployer()
    decisions = ChainDecisions(
        chain, EngineSection(bits=(8, 32)), deployer.placement, "fp32", total_steps, statistics, EngineMetrics(registry)
    )
    decisions.look(deployer, 0.0)
    return decisions, deployer, statistics, registry


def without_the_middle(decisions, deployer, statistics):
    """The run has gone on without it."""
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
    (document,) = deployer.documents
    wanted = parse_placement(document, "the test", len(CHAIN), CHAIN.batch_size)
    assert chain_workers(wanted) == ALL
    cuts = plan_chain(CHAIN, (8, 32), 4).partition.cuts
    assert sorted(tile.first for tile in wanted.tiles)[1:] == [*cuts]


def test_a_trainer_that_is_back_and_too_slow_is_not_used():
    middle = replace(CHAIN.stages[1], seconds=CHAIN.stages[1].seconds * 20)
    decisions, deployer, statistics, _ = run(replace(CHAIN, stages=(CHAIN.stages[0], middle, CHAIN.stages[2])))
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    assert deployer.documents == []


def test_nobody_is_taken_back_for_the_last_steps():
    decisions, deployer, statistics, _ = run(total_steps=8)
    without_the_middle(decisions, deployer, statistics)
    decisions.weigh(deployer, ["s1"])
    assert deployer.documents == [], "five steps win 25 s"


def test_cuts_that_are_pinned_stay_with_their_workers():
    decisions, deployer, statistics, _ = run()
    without_the_middle(decisions, deployer, statistics)
    decisions.pin(cuts=(9,), bits=None)
    decisions.weigh(deployer, ["s1"])
    assert deployer.documents == []
