"""New times of workers that one factor does not bring right, measured while they train, at a price that nobody notices.

Measuring takes a hundredth of the time at most: one step of one range of blocks, between two steps of training, and then
nothing for a hundred times as long. The range comes first that could change the choice most; where none could, nothing is
measured. New times are believed only beside what the steps of training take: a step that was timed while those were not as
usual counts for nothing, today's blocks timed alone have to take about as long as in a step, and the rest is judged in
proportion to them.
"""

import asyncio
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import NamedTuple

import structlog

from edge_agent.planning import BlockRange, Engine, Profile, Usual, WorkerProfile
from edge_agent.planning.engine.devices import TOLERANCE
from edge_agent.planning.engine.measuring import deciding_range
from edge_agent.planning.measurements import Floats
from edge_agent.planning.prediction import ChangedDevice
from shared.errors import IsthmusError

_log = structlog.get_logger(__name__)

MEASURING_PART = 0.01
"""Part of the run's time that measuring may take at most."""

STEPS = 3
"""Steps of each range of blocks of which the median counts, after one that does not."""

MOST_RANGES = 8
"""Ranges that are enough for a device that has changed (paper 001)."""

PLAUSIBLE = 1.33
"""Factor by which today's blocks, timed alone, may differ from what steps of training take with them. Beyond that, what is
timed says nothing of training."""

NEXT_SECONDS = 600.0
"""Shortest time from one measurement of a worker to the next. One that changes all the time would otherwise be measured all the
time."""


class TimedStep(NamedTuple):
    """One step of a range of blocks, on made-up features."""

    seconds: float
    """Seconds of the step."""
    waited_seconds: float
    """Seconds for which training may have waited for it."""


StepTimer = Callable[[int, int], Awaitable[TimedStep]]
"""A timer of one step of blocks [first, stop). Raises IsthmusError."""

StepTimers = Callable[[str], AbstractAsyncContextManager[StepTimer]]
"""Timers of steps at a worker, by its name. Raises IsthmusError."""


class Budget:
    """The time that measuring may take. What it has not taken by its next step is not saved up for later ones."""

    def __init__(self, now_seconds: float) -> None:
        self._empty_since = now_seconds

    def allows(self, seconds: float, now_seconds: float) -> bool:
        """Tell whether a step that takes about so long may be done now."""
        return seconds <= MEASURING_PART * (now_seconds - self._empty_since)

    def spend(self, seconds: float, now_seconds: float) -> None:
        """Note a step that took so long. Where that was more than there was, the rest is owed."""
        self._empty_since = max(now_seconds, self._empty_since + seconds / MEASURING_PART)


class Measurement:
    """The new times of one worker, as far as they are known."""

    def __init__(self, engine: Engine, name: str, usual: Usual) -> None:
        self.name = name
        self.usual = usual
        """Its blocks and the time of its steps as this began."""
        self.waited_seconds = 0.0
        """Time that it has cost until now."""
        self._profile = engine.question.profile
        self._worker = self._profile.worker(name)
        self._before: Floats = self._worker.seconds_at(engine.layout.staleness)
        self._device = ChangedDevice(self._before)
        self._steps: dict[BlockRange, list[float]] = defaultdict(list)
        self._unsettled: tuple[BlockRange, float] | None = None
        """The newest step. It counts once training is seen to have gone on as usual."""

    def is_of(self, profile: Profile, usual: Usual) -> bool:
        """Tell whether this is the profile, and the worker a device, of which it began to measure the times."""
        is_same = usual.blocks == self.usual.blocks and self.is_near(usual.seconds, self.usual.seconds)
        return profile is self._profile and is_same

    @staticmethod
    def is_near(seconds: float, others: float) -> bool:
        """Tell whether two times are those of one device."""
        return abs(seconds / others - 1.0) <= TOLERANCE

    def note(self, run: BlockRange, timed: TimedStep) -> None:
        """Note a step of a range of blocks."""
        self._unsettled = run, timed.seconds
        self.waited_seconds += timed.waited_seconds

    def settle(self, *, is_usual: bool) -> None:
        """Count the newest step, if training went on as usual beside it."""
        if self._unsettled is not None and is_usual:
            run, seconds = self._unsettled
            self._steps[run].append(seconds)
        self._unsettled = None

    def next_range(self, engine: Engine) -> BlockRange | None:
        """Return the range of blocks of which to time a step next; None where all that could change the choice are known."""
        begun = next((run for run, steps in self._steps.items() if len(steps) <= STEPS), None)
        if begun is not None:
            return begun
        if len(self._known) >= MOST_RANGES:
            return None
        place, margin = engine.names.index(self.name), engine.config.margin
        deciding = deciding_range(engine.pool, engine.conditions, place, *self._ratios(), self._known.keys(), margin)
        return deciding if deciding is None or self.usual.blocks in self._known else self.usual.blocks

    def expected_seconds(self, run: BlockRange) -> float:
        """Return about what a step of a range takes."""
        return float(self._ratios()[0][run] * self._before[run]) * self._alone

    @property
    def new_times(self) -> WorkerProfile | None:
        """Return the worker with its new times; None where nothing had to be timed."""
        if len(self._known) < 2:
            return None
        ratios, _ = self._ratios()
        return replace(self._worker, replayed=self._worker.replayed * ratios, serial=self._worker.serial * ratios)

    @property
    def contradiction(self) -> str:
        """Say what is not plausible beside what the steps of training take; empty where all is."""
        known, (first, stop) = self._known, self.usual.blocks
        if not 1.0 / PLAUSIBLE <= self._alone <= PLAUSIBLE:
            return f"blocks {first}:{stop} alone take {self._alone:.2f} times what they take in a step"
        for (begin, end), seconds in known.items():
            ratio = seconds / self._alone / self.usual.seconds
            is_within, has_within = first <= begin and end <= stop, begin <= first and stop <= end
            if (is_within and ratio > 1.0 + TOLERANCE) or (has_within and ratio < 1.0 - TOLERANCE):
                return f"blocks {begin}:{end} take {ratio:.2f} times what blocks {first}:{stop} take"
        return ""

    @property
    def _known(self) -> dict[BlockRange, float]:
        """Seconds of the ranges of which enough steps were timed."""
        return {run: statistics.median(steps[1:]) for run, steps in self._steps.items() if len(steps) > STEPS}

    @property
    def _alone(self) -> float:
        """Seconds of today's blocks timed alone, over those in a step of training."""
        return self._known.get(self.usual.blocks, self.usual.seconds) / self.usual.seconds

    def _ratios(self) -> tuple[Floats, Floats]:
        """Return what `ChangedDevice` finds from the known ranges, in proportion to the steps of training."""
        known = {run: seconds / self._alone for run, seconds in self._known.items()}
        return self._device.ratios({self.usual.blocks: self.usual.seconds} | known)


class Measuring:
    """The measuring of one run. Used on its event loop; what computes runs on other threads."""

    def __init__(
        self,
        engine: Engine,
        alone: asyncio.Lock,
        note: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """alone: held by the one that uses the engine. note: hears of the seconds that training waited for a step.

        clock: seconds that never go back.
        """
        self._clock = clock
        self._engine = engine
        self._alone = alone
        self._note = note
        self._budget: Budget | None = None
        """None before the first look."""
        self._ended_seconds: dict[str, float] = {}
        """Times at which the latest measurement of each worker ended."""
        self._measurement: Measurement | None = None
        self._timer: StepTimer | None = None
        self._stack = AsyncExitStack()
        """Holds the timer open."""

    async def close(self) -> None:
        """End the measurement under way. What it knows by then is not used."""
        self._measurement, self._timer = None, None
        await self._stack.aclose()

    async def go_on(self, timers: StepTimers) -> None:
        """Time one step, if there is anything to measure and the time for it. Called after each look at the run."""
        now = self._clock()
        self._budget = self._budget or Budget(now)
        async with self._alone:
            measurement = await self._measurement_now(now)
            run = None if measurement is None else await self._next_range(measurement)
        if measurement is None or run is None or not self._budget.allows(measurement.expected_seconds(run), now):
            return
        try:
            if self._timer is None:
                self._timer = await self._stack.enter_async_context(timers(measurement.name))
                return  # training goes on for a while before the first step
            timed = await self._timer(*run)
        except IsthmusError as failure:
            await self._give_up(measurement, str(failure))
            return
        self._budget.spend(timed.waited_seconds, self._clock())
        self._note(timed.waited_seconds)
        measurement.note(run, timed)
        async with self._alone:
            self._engine.note_measuring(timed.waited_seconds)

    async def _measurement_now(self, now_seconds: float) -> Measurement | None:
        """Return the measurement to go on with, or begin one; None where there is none, or steps are not as usual."""
        engine, measurement = self._engine, self._measurement
        if measurement is not None:
            is_wanted = measurement.name in engine.misfits
            usual = engine.usual(measurement.name) if is_wanted else None
            measurement.settle(is_usual=usual is not None)
            if is_wanted and usual is None:
                return None
            if usual is not None and measurement.is_of(engine.question.profile, usual):
                return measurement
            await self.close()  # of a device, or of a layout, that is no more
        for name in engine.misfits:
            is_soon = now_seconds - self._ended_seconds.get(name, -math.inf) < NEXT_SECONDS
            if engine.question.profile.by_samples is not None or is_soon:
                engine.keep_factor(name)
            elif (usual := engine.usual(name)) is not None:
                self._measurement = Measurement(engine, name, usual)
                return self._measurement
        return None

    async def _next_range(self, measurement: Measurement) -> BlockRange | None:
        """Return the range to time next; None where the measurement is over, and its times are in use or refused."""
        engine, name = self._engine, measurement.name
        if reason := measurement.contradiction:
            await self._give_up(measurement, reason)
            return None
        run = await asyncio.to_thread(measurement.next_range, engine)
        if run is not None:
            return run
        worker = measurement.new_times
        if worker is None:
            engine.keep_factor(name)
        else:
            await asyncio.to_thread(engine.measured_again, worker)
            _log.info(
                "a worker was measured again, because one factor did not bring it right",
                worker=name,
                training_waited_seconds=round(measurement.waited_seconds, 3),
            )
        await self._end(name)
        return None

    async def _give_up(self, measurement: Measurement, reason: str) -> None:
        _log.warning(
            "the times of a worker stay, because it could not be measured again",
            worker=measurement.name,
            reason=reason,
            training_waited_seconds=round(measurement.waited_seconds, 3),
        )
        self._engine.keep_factor(measurement.name)
        await self._end(measurement.name)

    async def _end(self, name: str) -> None:
        self._ended_seconds[name] = self._clock()
        await self.close()
