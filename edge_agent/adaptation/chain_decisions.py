"""The decisions of a run on a chain: the loop reports measurements once a second, and has blocks moved as the engine decides.

The engine (`shared/planning/chain/engine.py`) is pure and decides. Clock, codecs by name, logs and metrics are here. An
operator's pins take precedence.

If the run continues without a trainer, so does the engine. When that trainer answers again, it is a candidate: the run
takes it back if the best partition with it is better by the margin and gains more than it costs.

A changed device first gets one factor. If that does not fit, eight new samples are measured during training, and all
its times are computed from them (paper 001; `stage_samples`).
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise

import structlog

from edge_agent.adaptation.polling import polling
from edge_agent.adaptation.stage_samples import Run, runs_to_measure, seconds_by
from edge_agent.config import EngineSection
from edge_agent.experiment.building import Experiment
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.choosers import Chooser
from edge_agent.training.open_run import PlacementController
from edge_agent.training.statistics import MeanSince, Statistics
from shared.concurrency.tasks import meanwhile
from shared.errors import ConfigError, DataError, IsthmusError, PlanError
from shared.placement import Placement, chain_workers
from shared.planning import (
    Decision,
    EngineConfig,
    Observation,
    Profile,
    Question,
    Reason,
    SearchSpace,
    best,
    layout_of,
)
from shared.planning.chain import ChainEngine
from shared.planning.profile import Hop
from shared.registry import codec_bits

_log = structlog.get_logger(__name__)

RETURN_SECONDS = 30.0
"""Interval of questions to trainers that were left out, and the least gain of a return: all workers restore a
checkpoint for it."""


NEXT_SAMPLES_SECONDS = 600.0
"""Shortest time to the next measurement of a stage. A stage that changes all the time would otherwise do nothing else."""

Measures = Callable[[str, Sequence[Run]], Awaitable[Mapping[Run, float]]]
"""Measurement of a step's seconds, for these runs of blocks at a worker, during training. Raises IsthmusError."""


class ChainDecisions:
    """The decisions of one run. All methods are called on its event loop."""

    def __init__(
        self,
        chain: Profile,
        settings: EngineSection,
        placement: Placement,
        total_steps: int,
        statistics: Statistics,
        metrics: EngineMetrics,
    ) -> None:
        """placement: the run's first one, a chain.

        Raises PlanError if it was not measured.
        """
        self._chain, self._settings, self._total_steps = chain, settings, total_steps
        self._statistics, self._metrics = statistics, metrics
        self._pinned: tuple[tuple[int, ...] | None, int | None, int | None] = None, None, None
        self._means: dict[str, MeanSince] = {}
        self._is_misfit = asyncio.Event()
        """Event that is set while a stage needs new samples."""
        self._measured_seconds: dict[str, float] = {}
        """Times of the latest measurement of each stage, by time.monotonic."""
        self._begin(placement)

    def _begin(self, placement: Placement) -> None:
        """Decide for the workers of this placement. Raises PlanError if it was not measured."""
        names = chain_workers(placement) or ()
        config = EngineConfig(margin=self._settings.margin, dwell_seconds=self._settings.dwell_seconds)
        start = layout_of(placement, codec_bits)
        space = SearchSpace(self._settings.bits, allow_edge_only=False)
        self._engine = ChainEngine(self._chain.among(names), space, start, config, self._total_steps)
        self._names = names
        self._means.clear()
        self._proposal: Decision | None = None
        with suppress(PlanError):  # these cuts were pinned for other workers
            self.pin(*self._pinned)

    @property
    def predicted_seconds(self) -> float:
        """Return the present seconds a step, as believed of devices and links."""
        return self._engine.predicted_seconds

    @asynccontextmanager
    async def running(self, deployer: PlacementController, measure: Measures) -> AsyncIterator[None]:
        """Decide for this deployer while the body runs."""
        async with (
            polling(partial(self.look, deployer)),
            meanwhile(self._ask_who_is_back(deployer)),
            meanwhile(self._take_samples_when_wanted(measure)),
        ):
            yield

    async def _ask_who_is_back(self, deployer: PlacementController) -> None:
        while True:
            await asyncio.sleep(RETURN_SECONDS)
            if not (back := await deployer.back()):
                continue
            try:
                self.weigh(deployer, back)
            except (ConfigError, DataError) as refusal:
                _log.warning("trainers are not taken back", trainers=back, reason=str(refusal))

    async def _take_samples_when_wanted(self, measure: Measures) -> None:
        while True:
            await self._is_misfit.wait()
            self._is_misfit.clear()
            await self.take_new_samples(measure)

    async def take_new_samples(self, measure: Measures) -> None:
        """Measure every stage again for which one factor does not fit."""
        for name in self._engine.misfits:
            await self._measure_again(name, measure)

    async def _measure_again(self, name: str, measure: Measures) -> None:
        """Measure a stage again. If that fails, its factor stays until it no longer fits."""
        engine, chain = self._engine, self._chain
        now = time.monotonic()
        if now - self._measured_seconds.get(name, -math.inf) < NEXT_SAMPLES_SECONDS:
            engine.keep_factor(name)
            return
        self._measured_seconds[name] = now
        worker = chain.worker(name)
        before = worker.replayed
        runs = await asyncio.to_thread(runs_to_measure, before, engine.runs[name])
        _log.info("measuring a stage again, because one factor does not bring it right", stage=name, runs=runs)
        try:
            samples = await measure(name, runs)
        except IsthmusError as failure:
            _log.warning("the stage could not be measured again", stage=name, reason=str(failure))
            engine.keep_factor(name)
            return
        seconds = await asyncio.to_thread(seconds_by, samples, before)
        now_measured = replace(worker, replayed=seconds)
        self._chain = self._chain.with_worker(now_measured)
        if name in self._names:  # The run may have continued without it.
            self._engine.measured_again(now_measured)

    def weigh(self, deployer: PlacementController, back: Sequence[str]) -> None:
        """Take back trainers that answer again, if that is worth it. Raises ConfigError or DataError if they are not
        permitted."""
        placement = deployer.placement
        if deployer.moving or self._pinned[0] is not None or chain_workers(placement) != self._names:
            return
        chain = self._chain_today().among({*self._names, *back})
        space = SearchSpace(self._settings.bits, placement.staleness, allow_edge_only=False)
        try:
            found = best(Question(chain, space))
        except PlanError:
            return
        today, remaining = self.predicted_seconds, self._engine.remaining_steps
        won_seconds = (today - found.seconds_per_step) * remaining
        if found.seconds_per_step >= (1.0 - self._settings.margin) * today or won_seconds <= RETURN_SECONDS:
            return
        _log.info("taking trainers back", trainers=back, wanted=str(found.layout))
        self._metrics.repartitions.labels(Reason.WORKER).inc()
        deployer.want(deployer.experiment.laid_out(found.layout, placement), Chooser.ENGINE)

    def _chain_today(self) -> Profile:
        """Return the chain of all workers, with today's times of those in use and today's rates of their links."""
        today, chain = self._engine.profile_today, self._chain
        for worker in today.workers:
            chain = chain.with_worker(worker)
        return chain.with_links(today.links)

    def pin(self, cuts: tuple[int, ...] | None, bits: int | None, staleness: int | None) -> None:
        """Fix cuts or bit width, each that is given. Raises PlanError for an impossible one, and then nothing is changed."""
        widths = self._settings.bits if bits is None else (bits,)
        self._engine.constrain(SearchSpace(widths, cuts=cuts, allow_edge_only=False))
        self._pinned = cuts, bits, staleness

    def look(self, deployer: PlacementController, seconds: float) -> None:
        """Observe once, and act on the result. seconds: any clock that never goes back."""
        if deployer.moving:
            self._engine.note_standstill(seconds)
            return
        placement = deployer.placement
        names = chain_workers(placement)
        is_known = names is not None and names == tuple(name for name in self._chain.names if name in names)
        if is_known and names != self._names:
            self._chain = self._chain_today()
            try:
                self._begin(placement)
            except PlanError:
                is_known = False
        layout = layout_of(placement, codec_bits)
        if not is_known or not self._engine.knows(layout) or not self._statistics.is_flowing:
            self._engine.note_standstill(seconds)
            return
        if self._proposal is not None or layout != self._engine.layout:
            self._proposal = None
            self._take_seconds()  # forgets the steps before
            self._engine.note_deployed(seconds, layout)
        seen = Observation(seconds, self._statistics.steps, self._rates(), work=self._take_seconds())
        decision = self._engine.observe(seen)
        if self._engine.misfits:
            self._is_misfit.set()
        self._metrics.step_seconds.set(self.predicted_seconds, "modelled")
        self._show_ratios()
        if (step_seconds := self._statistics.step_time.recent) is not None:
            self._metrics.step_seconds.set(step_seconds, "measured")
        if decision is not None:
            self._apply(deployer, decision)

    def _show_ratios(self) -> None:
        for name, ratio in self._engine.prediction_ratios.items():
            if ratio:  # 0 before there were enough steps
                self._metrics.prediction_ratio.set(ratio, name)

    def _apply(self, deployer: PlacementController, decision: Decision) -> None:
        wanted = decision.layout
        _log.info(
            "moving blocks of the chain",
            today=str(self._engine.layout),
            wanted=str(wanted),
            reason=decision.reason,
            predicted_seconds_per_step=round(decision.seconds_per_step, 4),
            staying_seconds_per_step=round(decision.staying_seconds_per_step, 4),
            predicted_moving_seconds=round(decision.migration_seconds, 3),
        )
        self._proposal = decision
        self._metrics.repartitions.labels(decision.reason).inc()
        self._metrics.step_seconds.set(decision.seconds_per_step, "predicted")
        try:
            deployer.want(deployer.experiment.laid_out(wanted, deployer.placement), Chooser.ENGINE)
        except IsthmusError as refusal:  # the next look sees the old placement
            _log.warning("the blocks stay", reason=str(refusal))

    def _rates(self) -> dict[Hop, float | None]:
        rates = self._statistics.link_rates
        hops = list(pairwise(self._names))
        return {hop: rates.get(hop) for hop in [*hops, *((far, near) for near, far in hops)]}

    def _take_seconds(self) -> dict[str, float | None]:
        """Return the mean seconds of each stage for a step since the last call."""
        taken: dict[str, float | None] = {}
        for name in self._names:
            figures = self._statistics.workers.get(name)
            if figures is None:
                continue
            mean = self._means.get(name)
            if mean is None or mean.timing is not figures.compute:
                mean = self._means[name] = MeanSince(figures.compute)
            taken[name] = mean.take()
        return taken


def make_chain_decisions(
    experiment: Experiment, chain: Profile, statistics: Statistics, metrics: EngineMetrics
) -> ChainDecisions:
    """Make the decisions of a run on a chain. Raises PlanError if its start was not measured."""
    engine, placement = experiment.config.engine, experiment.placement
    return ChainDecisions(chain, engine, placement, experiment.steps, statistics, metrics)
