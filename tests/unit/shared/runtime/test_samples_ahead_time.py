"""Samples that leave ahead in virtual time: a step of a run takes as long as the simulator says."""

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from benchmarks.planning.step_cost import step_cost
from edge_agent.planning import (
    BlockCosts,
    BlockSeconds,
    Linear,
    PlacementRun,
    Rates,
    StepTasks,
    simulate_placement,
    steady_step_seconds,
    step_tasks,
)
from shared.execution.model_facts import facts_of
from shared.placement import Placement, Rows, StepPlan, segments
from tests.support.linked import LinkedSession
from tests.support.paced import noted_segments, paced
from tests.support.placed import CLASSES, INPUTS, WIDTH, batch_of, built, chain_of, recipe
from tests.support.virtual import Wire, run_virtually
from tests.unit.shared.runtime import test_samples_ahead
from tests.unit.shared.runtime.test_samples_ahead import AHEAD, BEHIND, CUT, INVERTED, TIERS

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES, FLOAT_BYTES, STEPS = 2048, 4.0, 30
WIDTHS = (INPUTS, WIDTH, WIDTH, WIDTH, CLASSES)
"""Numbers of a sample before, between and after the blocks."""
FEATURE_BITS = 8.0 * SAMPLES * WIDTH * FLOAT_BYTES
BLOCK = BlockSeconds(Linear(0.01), Linear(0.02), 0.001)
AS_SIMULATED = 0.01
"""Largest relative difference of a step: acks and reports take bytes, too."""
FAR = {"trip": 1.0, "carry": 0.01}
"""The next samples are long on their way."""
NARROW = {"trip": 0.02, "carry": 0.1}
"""They are long on the link."""
QUICK = {"trip": 0.02, "carry": 0.03}
"""They take half as long as a worker computes."""
CHUNK_BYTES, BUFFER_BYTES = 1 << 14, 1
"""Small, so that the link carries what was the most urgent load when it became free."""


def larger(placement: Placement, staleness: int) -> Placement:
    """Return a placement of batches so large that a message's head is nothing beside its tensors."""

    def rows(small: Rows) -> Rows:
        return small.scaled(SAMPLES, test_samples_ahead.SAMPLES)

    return replace(
        placement,
        staleness=staleness,
        batch_size=SAMPLES,
        tiles=tuple(replace(tile, rows=rows(tile.rows)) for tile in placement.tiles),
        sources=tuple(replace(source, rows=rows(source.rows)) for source in placement.sources),
    )


@dataclass(frozen=True)
class Case:
    """A placement over links that are alike."""

    placement: Placement
    trip: float
    carry: float
    """Seconds of a feature of the whole batch."""
    ahead: int

    @property
    def step(self) -> StepTasks:
        costs = BlockCosts(
            dict.fromkeys(self.placement.workers, (BLOCK,) * self.placement.blocks),
            tuple(FLOAT_BYTES * width for width in WIDTHS),
            tuple(FLOAT_BYTES * (width + 1) * after for width, after in pairwise(WIDTHS)),
            8.0,
            {},
        )
        rates = Rates(FEATURE_BITS / self.carry, FEATURE_BITS / self.carry, self.trip)
        return step_tasks(self.placement, self.plan.model, costs, dict.fromkeys(self.plan.links, rates), replays=False)

    @property
    def plan(self) -> StepPlan:
        return StepPlan(self.placement, facts_of(chain_of(built("dropping")), recipe("sgd", samples_ahead=self.ahead)))

    def run(self) -> float:
        """Return the seconds of a step of the runtime."""
        session: LinkedSession
        begun, plan, step = 0.0, self.plan, self.step

        async def main() -> None:
            nonlocal session, begun
            begun = asyncio.get_running_loop().time()
            session = LinkedSession(
                built("dropping"),
                self.placement,
                recipe("sgd", samples_ahead=self.ahead),
                computing=lambda worker: paced(worker, step, segments(plan.program(worker))[0]),
                wires=lambda _sender, _receiver: Wire(
                    FEATURE_BITS / self.carry, self.trip / 2, buffer_bytes=BUFFER_BYTES
                ),
                chunk_bytes=CHUNK_BYTES,
            )
            await session.train([batch_of(number, SAMPLES) for number in range(STEPS)])

        with noted_segments():
            run_virtually(main)
        done = tuple(moment - begun for moment in session.done_seconds)
        return PlacementRun(done, done, step.ahead, step.early).seconds_per_step()


@pytest.mark.first_case
@pytest.mark.parametrize("ahead", [AHEAD, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("placement", "link"),
    [(TIERS, FAR), (BEHIND, FAR), (BEHIND, NARROW), (INVERTED, FAR)],
    ids=["shared blocks", "all beyond, far", "all beyond, narrow", "inverted"],
)
def test_a_step_takes_as_long_as_is_simulated_and_less_than_with_nothing_ahead(placement, link, staleness, ahead):
    case = Case(larger(placement, staleness), **link, ahead=ahead)
    simulated = steady_step_seconds(case.step)
    assert case.run() == pytest.approx(simulated, rel=AS_SIMULATED)
    assert simulated < 0.9 * steady_step_seconds(replace(case, ahead=0).step)


@pytest.mark.first_case
@pytest.mark.parametrize("link", [NARROW, QUICK], ids=["narrow", "quick"])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_step_whose_samples_wait_for_the_device_takes_as_long_as_is_simulated(staleness, link):
    """A batch begins on the thread that computes, between two pieces of work."""
    case = Case(larger(INVERTED, staleness), **link, ahead=0)
    assert case.run() == pytest.approx(steady_step_seconds(case.step), rel=AS_SIMULATED)


def test_where_features_go_up_labels_ahead_win_nothing():
    case = Case(larger(CUT, 0), **FAR, ahead=AHEAD)
    assert case.step.early == AHEAD
    assert steady_step_seconds(case.step) == pytest.approx(steady_step_seconds(replace(case, ahead=0).step))


@pytest.mark.parametrize("placement", [TIERS, CUT, INVERTED, BEHIND])
@pytest.mark.parametrize("staleness", [0, 2])
def test_no_step_takes_less_than_its_longest_way_round(placement, staleness):
    for link in (FAR, NARROW):
        step = Case(larger(placement, staleness), **link, ahead=AHEAD).step
        assert step_cost(step).bound() <= steady_step_seconds(step) * (1 + 1e-9)


def test_the_last_steps_have_no_samples_beside_them_and_do_not_count():
    step = Case(larger(BEHIND, 0), **NARROW, ahead=AHEAD).step
    run = simulate_placement(step, STEPS)
    assert run.early == AHEAD
    assert run.seconds_per_step() == pytest.approx(steady_step_seconds(step))
