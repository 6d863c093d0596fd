"""Measuring while a run trains: what it may take, what it asks for, and which new times are believed."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from edge_agent.adaptation.measuring import MEASURING_PART, MOST_RANGES, STEPS, Budget, Measuring, TimedStep
from edge_agent.planning import Engine, Observation, SearchSpace, stacked
from shared.errors import BusyError
from tests.support.planning.chain_runs import BITS, uniform_chain

CHAIN = uniform_chain(block_seconds=0.2)
BLOCKS = len(CHAIN)
LOOK_SECONDS = 10.0
FIRST, SECOND = (6, 9), (2, 8)
"""Cuts under which the first worker is found to be slower, and under which its factor does not hold."""


def table_of(blocks):
    """Tabulate the seconds of every range of these blocks."""
    sums = np.concatenate([[0.0], np.cumsum(blocks)])
    table = sums[None, :] - sums[:, None]
    table[np.tril_indices(len(sums))] = np.nan
    return table


TRUTH = table_of([0.4, 0.4, *[0.05] * 10])
"""The first worker's two first blocks take twice as long as in the profile, the others a quarter."""


class World:
    """A run on three workers, a second after another, of which the first has become another device."""

    def __init__(self, cuts=None):
        self.cuts = cuts
        space = SearchSpace(BITS, 4, allow_edge_only=False, cuts=cuts)
        self.layout = stacked(CHAIN, cuts or FIRST, 4, (32, 32))
        self.engine = Engine(CHAIN, space, self.layout, total_steps=100_000)
        self.seconds, self.steps = 0.0, 0
        self.asked, self.waited = [], []
        """Ranges of blocks of which a step was timed, and the time of each and what it cost."""
        self.alone, self.busy, self.failure = 1.0, False, None
        """Times of steps that are timed alone over those in training; whether the machine is busy, and three times as slow."""
        self.measuring = Measuring(self.engine, asyncio.Lock(), self._note, lambda: self.seconds)

    def _note(self, seconds):
        self.waited.append((self.seconds, seconds))

    @asynccontextmanager
    async def timers(self, name):
        assert name == "s0"

        async def timer(first, stop):
            if self.failure is not None:
                raise self.failure
            self.asked.append((first, stop))
            seconds = float(TRUTH[first, stop]) * self.alone * (3.0 if self.busy else 1.0)
            return TimedStep(seconds, seconds)

        yield timer

    def train(self, looks):
        """Train for so many seconds with the layout as it is, whatever the engine would do."""
        for _ in range(looks):
            self.seconds += LOOK_SECONDS
            self.steps += int(LOOK_SECONDS)
            work = {
                tile.worker: float(TRUTH[tile.first, tile.stop])
                if tile.worker == "s0"
                else float(CHAIN.worker(tile.worker).replayed[tile.first, tile.stop])
                for tile in self.layout.tiles
            }
            if self.busy:
                work["s0"] *= 3.0
            if self.engine.observe(Observation(self.seconds, self.steps, work=work)) is not None:
                self.engine.note_deployed(self.seconds, self.layout)

    def lay(self, cuts):
        """Go on with another layout."""
        self.layout = stacked(CHAIN, cuts, 4, (32, 32))
        self.engine.note_deployed(self.seconds, self.layout)

    def until_a_misfit(self):
        """Have a factor found under the one cut that does not hold under the other."""
        self.train(10)
        self.lay(SECOND)
        self.train(10)
        assert self.engine.misfits == ("s0",)

    async def measure(self, looks):
        """Train on, with time to measure after each look."""
        for _ in range(looks):
            self.train(1)
            await self.measuring.go_on(self.timers)

    @property
    def believed(self):
        """Seconds of each range at the first worker now, as the engine believes, by its profile and its factor."""
        factor = float(self.engine.conditions.factors[0])
        return self.engine.question.profile.worker("s0").replayed * factor


def off(world):
    """By what part of them the times are wrong of the ranges that the first worker may have, up to half of the blocks."""
    return np.max(np.abs(world.believed[0, 1:6] / TRUTH[0, 1:6] - 1.0))


async def measured(looks=200, **world):
    found = World(**world)
    found.until_a_misfit()
    await found.measure(looks)
    return found


@pytest.mark.parametrize("saved_seconds", [0.0, 1e5])
def test_a_budget_allows_a_hundredth_of_the_time_and_saves_nothing_up(saved_seconds):
    budget = Budget(0.0)
    now = saved_seconds + 100.0
    assert budget.allows(1.0, now)
    assert budget.allows(1.1, now) is (saved_seconds > 0.0)
    budget.spend(2.0, now)
    assert not budget.allows(0.01, now)
    free = now if saved_seconds else 200.0
    assert not budget.allows(1.0, free + 99.0)
    assert budget.allows(1.0, free + 100.5)


async def test_measuring_takes_a_hundredth_of_the_time_a_step_at_a_time():
    world = await measured()
    assert len(world.asked) >= 2 * (STEPS + 1)
    for (begun, cost), (later, _) in zip(world.waited, world.waited[1:], strict=False):
        assert later - begun >= cost / MEASURING_PART - LOOK_SECONDS
    assert sum(cost for _, cost in world.waited) <= MEASURING_PART * world.seconds


async def test_new_times_of_a_few_ranges_replace_the_factor():
    world = World()
    world.until_a_misfit()
    before = off(world)
    await world.measure(200)
    assert world.engine.misfits == ()
    assert world.asked[0] == (0, 2), "what it has today comes first"
    assert set(map(world.asked.count, world.asked)) == {STEPS + 1}
    assert 2 <= len(set(world.asked)) <= MOST_RANGES
    assert off(world) < 0.05 < 1.0 < before


async def test_nothing_is_measured_where_no_time_could_change_the_choice():
    world = World()
    world.until_a_misfit()
    world.engine.constrain(SearchSpace(BITS, 4, cuts=SECOND))
    await world.measure(200)
    assert world.asked == []
    assert world.engine.misfits == ()
    assert world.engine.question.profile.worker("s0") is CHAIN.worker("s0")


async def test_steps_that_were_timed_on_a_busy_machine_count_for_nothing():
    quiet = await measured()
    world = World()
    world.until_a_misfit()
    for _ in range(20):
        await world.measure(15)
        world.busy = True
        await world.measure(1)
        world.busy = False
    assert world.engine.misfits == ()
    assert np.nanmax(np.abs(world.believed / quiet.believed - 1.0)) < 0.05


@pytest.mark.parametrize(("alone", "believed"), [(1.2, True), (0.85, True), (2.0, False), (0.4, False)])
async def test_new_times_are_believed_in_proportion_to_what_steps_of_training_take(alone, believed):
    world = World()
    world.until_a_misfit()
    world.alone = alone
    before = world.believed
    await world.measure(200)
    assert world.engine.misfits == ()
    if believed:
        assert off(world) < 0.05
    else:
        assert set(world.asked) == {(0, 2)}, "there is nothing to learn"
        assert np.array_equal(world.believed, before, equal_nan=True)


async def test_times_that_cannot_be_beside_those_of_a_step_are_not_believed(monkeypatch):
    world = World()
    world.until_a_misfit()
    before = world.believed
    lying = TRUTH.copy()
    lying[0, 3:] = 0.1  # more blocks than today's take a small part of their time
    lying[0, 1] = 4.0  # and one of today's takes more than both
    monkeypatch.setattr(
        "tests.unit.edge_agent.adaptation.test_measuring.TRUTH", np.where(np.isnan(TRUTH), TRUTH, lying)
    )
    await world.measure(200)
    assert world.engine.misfits == ()
    assert np.array_equal(world.believed, before, equal_nan=True)


async def test_a_worker_that_cannot_be_measured_keeps_its_factor_for_ten_minutes():
    world = World()
    world.until_a_misfit()
    world.failure = BusyError("no room")
    await world.measure(10)
    assert (world.asked, world.engine.misfits) == ([], ())


def test_what_training_waits_for_is_not_put_down_to_the_layout():
    seconds = []
    for waited in (0.0, 0.5):
        world = World(cuts=FIRST)
        for _ in range(100):
            world.engine.note_measuring(10.0 * waited)
            world.train(1)
        seconds.append(world.engine.outcome().measured_seconds_per_step)
    assert seconds == pytest.approx([1.0, 0.5], rel=0.02)
