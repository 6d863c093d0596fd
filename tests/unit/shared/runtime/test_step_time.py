"""The runtime over links in virtual time: a step takes as long as the simulator says."""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from torch import nn

from benchmarks.planning.mixes import Mix, mixes, most_over_the_bound
from benchmarks.planning.step_cost import step_cost
from edge_agent.planning import (
    BlockCosts,
    BlockSeconds,
    Linear,
    PlacementRun,
    Rates,
    StepTasks,
    simulate_placement,
    step_tasks,
)
from shared.concurrency.threads import WorkerThread
from shared.execution.model_facts import facts_of
from shared.placement import Link, ModelFacts, Placement, Rows, Source, StepPlan, Tile, segments
from shared.training.recipe import Recipe
from tests.support.linked import LinkedSession
from tests.support.paced import noted_segments, paced
from tests.support.placed import WIDTH, batch_of, built, chain_of, recipe
from tests.support.virtual import Wire, run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES, BLOCKS, FLOAT_BYTES, LABEL_BYTES = 2048, 4, 4, 8
FEATURE_BITS = 8.0 * SAMPLES * WIDTH * FLOAT_BYTES
WHOLE = Rows(0, SAMPLES)
CUTS = {2: (0, 2, 4), 3: (0, 1, 3, 4), 4: (0, 1, 2, 3, 4)}
AS_SIMULATED = 0.01
"""Largest relative difference of a step: acks and reports take bytes, too."""


@dataclass(frozen=True)
class Timed:
    """A placement, and the times of its parts."""

    placement: Placement
    compute: Mapping[str, tuple[float, float]]
    """Seconds forward and backward of all blocks of a worker together."""
    carry: Mapping[Link, float]
    """Seconds of a feature and of its error gradient."""
    round_trip: float = 0.0
    update: float = 0.0
    frozen: int = 0
    """Number of the first blocks that learn nothing."""
    clip: str = "block"
    scaled: bool = False
    """True if the loss is scaled, because of a worker that is not here."""

    @property
    def told(self) -> Recipe:
        return recipe("sgd", 0.5, {"nobody": "fp16"} if self.scaled else "fp32", clip=self.clip)

    @property
    def module(self) -> nn.Sequential:
        module = built("dropping")
        for block in module[: self.frozen]:
            block.requires_grad_(False)
        return module

    @property
    def model(self) -> ModelFacts:
        return facts_of(chain_of(self.module), self.told)

    def _carried(self, link: Link) -> float:
        return self.carry.get(link) or self.carry.get(Link(link.listener, link.dialer), 1e-4)

    @property
    def rates(self) -> dict[Link, Rates]:
        each = {link: FEATURE_BITS / self._carried(link) for link in StepPlan(self.placement, self.model).links}
        return {link: Rates(rate, rate, self.round_trip) for link, rate in each.items()}

    @property
    def step(self) -> StepTasks:
        feature = float(WIDTH * FLOAT_BYTES)
        blocks = {}
        for worker, both in self.compute.items():
            held = sum(tile.stop - tile.first for tile in self.placement.tiles if tile.worker == worker)
            forward, backward = (Linear(seconds / held) for seconds in both)
            blocks[worker] = (BlockSeconds(forward, backward, self.update / held),) * BLOCKS
        costs = BlockCosts(blocks, (feature,) * (BLOCKS + 1), (0.0,) * BLOCKS, LABEL_BYTES, {})
        return step_tasks(self.placement, self.model, costs, self.rates, replays=False)

    def run(self, steps: int) -> PlacementRun:
        """Run so many steps in the runtime."""
        session: LinkedSession
        begun = 0.0

        async def main() -> None:
            nonlocal session, begun
            begun = asyncio.get_running_loop().time()
            session = LinkedSession(
                self.module,
                self.placement,
                self.told,
                computing=self._pace,
                wires=self._wire,
                chunk_bytes=1 << 16,
            )
            await session.train([batch_of(step, SAMPLES) for step in range(steps)])

        with noted_segments():
            run_virtually(main)
        done = tuple(moment - begun for moment in session.done_seconds)
        return PlacementRun(done, done, self.step.ahead)

    def _pace(self, worker: str) -> WorkerThread:
        sent_first, _ = segments(StepPlan(self.placement, self.model).program(worker))
        return paced(worker, self.step, sent_first)

    def _wire(self, sender: str, receiver: str) -> Wire:
        rates = self.rates.get(Link(sender, receiver)) or self.rates[Link(receiver, sender)]
        return Wire(rates.uplink, rates.round_trip_seconds / 2)


def placed(staleness: int, *tiles: Tile) -> Placement:
    return Placement(
        version=1,
        blocks=BLOCKS,
        batch_size=SAMPLES,
        workers=tuple(dict.fromkeys(tile.worker for tile in tiles)),
        tiles=tiles,
        sources=(Source(tiles[0].worker, WHOLE),),
        staleness=staleness,
    )


def chain(staleness: int, mix: Mix, **more: float) -> Timed:
    names = [f"w{index}" for index in range(len(mix.workers))]
    tiles = [Tile(name, *both, WHOLE) for name, both in zip(names, pairwise(CUTS[len(names)]), strict=True)]
    carry = {Link(*both): up for both, (up, _) in zip(pairwise(names), mix.carry, strict=True)}
    return Timed(placed(staleness, *tiles), dict(zip(names, mix.compute, strict=True)), carry, **more)


def labels_stay(staleness: int, edge: float, trainer: float, carry: float, frozen: int = 0) -> Timed:
    tiles = Tile("edge", 0, 1, WHOLE), Tile("gpu", 1, 3, WHOLE), Tile("edge", 3, 4, WHOLE)
    compute = {"edge": (0.4 * edge, 0.6 * edge), "gpu": (0.4 * trainer, 0.6 * trainer)}
    return Timed(placed(staleness, *tiles), compute, {Link("edge", "gpu"): carry}, frozen=frozen)


def run_as_simulated(timed: Timed) -> PlacementRun:
    """Run the runtime, and check that it takes as long as a simulated run."""
    steps = max(16, 8 * (timed.step.ahead + 1))
    run, simulated = timed.run(steps), simulate_placement(timed.step, steps)
    assert run.done[-1] == pytest.approx(simulated.done[-1], rel=AS_SIMULATED)
    return run


def full_but(tried, *every):
    """Return every combination. Those that are not tried always are left to `make test-full`."""
    return [pytest.param(*each, marks=[] if each in tried else pytest.mark.full) for each in itertools.product(*every)]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "staleness"), full_but([(2, 0), (2, 2), (3, 1)], (2, 3, 4), (0, 1, 2, 5)))
def test_chains_take_as_long_as_simulated_and_near_the_bound(workers, staleness):
    for mix in mixes(workers):
        timed = chain(staleness, mix)
        most = most_over_the_bound(workers, staleness, mix.name) + AS_SIMULATED
        assert run_as_simulated(timed).seconds_per_step() <= step_cost(timed.step).bound() * most, mix.name


@pytest.mark.slow
@pytest.mark.parametrize("staleness", full_but([(1,)], (0, 1, 2, 5)))
def test_updates_and_distance_cost_what_is_simulated(staleness):
    for mix in mixes(3):
        run_as_simulated(chain(staleness, mix, round_trip=0.0207, update=0.0061))


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", full_but([(0,), (2,)], (0, 1, 2, 5)))
@pytest.mark.parametrize(
    ("edge", "trainer", "carry"), [(0.06, 0.02, 0.0203), (0.02, 0.06, 0.0203), (0.02, 0.02, 0.0603)]
)
def test_labels_that_stay_take_as_long_as_simulated(staleness, edge, trainer, carry):
    run_as_simulated(labels_stay(staleness, edge, trainer, carry))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two workers", "a chain", "labels stay"])
@pytest.mark.parametrize("together", [{"clip": "model"}, {"scaled": True}], ids=["one norm", "one scale"])
def test_an_update_of_all_blocks_together_takes_no_trip_more_than_one_of_each(kind, together):
    def timed(**told: object) -> Timed:
        far = {"round_trip": 0.04, **told}
        if kind == "labels stay":
            return replace(labels_stay(0, 0.02, 0.02, 0.0203), update=0.002, **far)
        return chain(0, next(iter(mixes(2 if kind == "two workers" else 3))), update=0.002, **far)

    blocks, whole = (run_as_simulated(timed(**told)).seconds_per_step() for told in ({}, together))
    assert whole <= 1.02 * blocks


def test_a_worker_waits_for_nobody_where_nothing_can_be_stale():
    timed = labels_stay(0, 0.06, 0.02, 0.0203, frozen=3)
    assert run_as_simulated(timed).seconds_per_step() == pytest.approx(
        step_cost(timed.step).longest(), rel=AS_SIMULATED
    )
