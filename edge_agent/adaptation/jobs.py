"""The work of a run's decisions that takes longer than a look: searches, new times of a worker, and trainers that are back.

A changed device first gets one factor. If that does not fit, eight new samples are measured during training, and all its times
are computed from them (paper 001; stage_samples.py), unless the profile has times by samples. If the run continues without a
trainer, and it answers again, it is taken back where that is worth it.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from edge_agent.adaptation.stage_samples import BlockRange, runs_to_measure, seconds_by
from edge_agent.training.open_run import PlacementController
from shared.concurrency.tasks import meanwhile
from shared.errors import IsthmusError, PlanError
from shared.planning import Decision, Engine

_log = structlog.get_logger(__name__)

ASK_SECONDS = 30.0
"""Interval of questions to trainers that were left out."""

NEXT_SAMPLES_SECONDS = 600.0
"""Shortest time to the next measurement of a worker. One that changes all the time would otherwise do nothing else."""

SEARCHING_PART = 0.05
"""Part of the time that searches may take at most."""

Measures = Callable[[str, Sequence[BlockRange]], Awaitable[Mapping[BlockRange, float]]]
"""Measurement of a step's seconds, for these runs of blocks at a worker, during training. Raises IsthmusError."""
Apply = Callable[[PlacementController, Decision], None]


class Jobs:
    """The work of one run, on its event loop; what computes runs on other threads."""

    def __init__(self, engine: Callable[[], Engine], alone: asyncio.Lock) -> None:
        """engine: returns the one of today's trainers. alone: held by the one that uses it."""
        self._engine = engine
        self._alone = alone
        self._looked = asyncio.Event()
        """Set after each look at the run."""
        self._next_search_seconds = -math.inf
        """Time before which no other search begins, by time.monotonic."""
        self._measured_seconds: dict[str, float] = {}
        """Times of the latest measurement of each worker, by time.monotonic."""

    def wake(self) -> None:
        """Look for work, because the engine has observed something."""
        self._looked.set()

    @asynccontextmanager
    async def running(self, deployer: PlacementController, measure: Measures, apply: Apply) -> AsyncIterator[None]:
        """Do the work while the body runs. apply: has a decision carried out."""
        async with meanwhile(self._after_looks(measure)), meanwhile(self._ask_who_is_back(deployer, apply)):
            yield

    async def _after_looks(self, measure: Measures) -> None:
        while True:
            await self._looked.wait()
            self._looked.clear()
            await self.search()
            await self.take_new_samples(measure)

    async def search(self) -> None:
        """Find the layouts that are worth weighing, where the engine wants that and searches have not taken too long."""
        begun = time.monotonic()
        engine = self._engine()
        if begun < self._next_search_seconds or (search := engine.next_search()) is None:
            return
        try:
            found = await asyncio.to_thread(search.run)
        except PlanError as nothing:
            _log.debug("no layouts found", reason=str(nothing))
            self._rest_after(time.monotonic() - begun)
            return
        searched_seconds = time.monotonic() - begun
        async with self._alone:  # others' work may have it for long, which is no work of a search
            begun = time.monotonic()
            await asyncio.to_thread(engine.weigh, search.question, found)
        self._rest_after(searched_seconds + time.monotonic() - begun)

    def _rest_after(self, worked_seconds: float) -> None:
        """Search no more until searches have taken their part of the time only."""
        self._next_search_seconds = time.monotonic() + worked_seconds * (1.0 / SEARCHING_PART - 1.0)

    async def take_new_samples(self, measure: Measures) -> None:
        """Measure every worker again for which one factor does not fit."""
        for name in self._engine().misfits:
            await self._measure_again(name, measure)

    async def _measure_again(self, name: str, measure: Measures) -> None:
        """Measure a worker again. If that fails, its factor stays until it no longer fits."""
        engine = self._engine()
        now = time.monotonic()
        run = next(((tile.first, tile.stop) for tile in engine.layout.tiles if tile.worker == name), None)
        has_factor_only = engine.question.profile.by_samples is not None
        is_soon = now - self._measured_seconds.get(name, -math.inf) < NEXT_SAMPLES_SECONDS
        if run is None or has_factor_only or is_soon:
            engine.keep_factor(name)
            return
        self._measured_seconds[name] = now
        worker = engine.question.profile.worker(name)
        before = worker.replayed
        runs = await asyncio.to_thread(runs_to_measure, before, run)
        _log.info("measuring a worker again, because one factor does not bring it right", worker=name, runs=runs)
        try:
            samples = await measure(name, runs)
        except IsthmusError as failure:
            _log.warning("the worker could not be measured again", worker=name, reason=str(failure))
            engine.keep_factor(name)
            return
        seconds = await asyncio.to_thread(seconds_by, samples, before)
        async with self._alone:
            await asyncio.to_thread(engine.measured_again, replace(worker, replayed=seconds))

    async def _ask_who_is_back(self, deployer: PlacementController, apply: Apply) -> None:
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if (back := await deployer.back()) or self._engine().is_elsewhere:
                await self.take_back(deployer, back, apply)

    async def take_back(self, deployer: PlacementController, back: Sequence[str], apply: Apply) -> None:
        """Take trainers back that answer again, if that is worth it, or leave a layout that the profile does not know."""
        engine = self._engine()
        question, search = engine.question, engine.return_search(back)
        if search is None or deployer.moving:
            return
        try:
            found = await asyncio.to_thread(search)
        except PlanError:
            return
        async with self._alone:
            if not deployer.moving and (decision := engine.propose_return(question, found)) is not None:
                _log.info("leaving the layout that recovery has chosen", trainers_back=back)
                apply(deployer, decision)
