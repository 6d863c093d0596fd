"""The schedule of a group's member, made again from what it measures while it trains (paper 002).

A look once a second costs nothing where nothing has changed. A schedule is made on another thread than the one that computes,
and comes into force at a boundary of this member's own steps: a trainer has another exchange with it, and no other member.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import structlog

from edge_agent.adaptation.measured_layers import MeasuredLayers, SegmentTimes, exchange_bounds
from edge_agent.adaptation.polling import polling
from edge_agent.config import EdgeConfig
from edge_agent.experiment.exchanging import exchange_by, is_made_again
from edge_agent.observability.metrics import SharingMetrics
from edge_agent.planning.schedules import STRATEGIES, ScheduleAgain
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.statistics import Statistics
from shared.events import Events
from shared.placement import Program

_log = structlog.get_logger(__name__)


class Rescheduling:
    """The schedules of one agent that is a member. Used on its event loop."""

    def __init__(self, strategy: str, events: Events, statistics: Statistics, metrics: SharingMetrics) -> None:
        self._strategy = strategy
        self._times = SegmentTimes(events)
        self._statistics = statistics
        self._metrics = metrics

    @asynccontextmanager
    async def running(self, deployer: Deployer, program: Program) -> AsyncIterator[None]:
        """Make schedules for this deployer while the body runs. program: of this device in each step."""
        self._times.forget()
        experiment = deployer.experiment
        layers = MeasuredLayers(experiment, program, self._times, self._statistics)
        again = ScheduleAgain(STRATEGIES[self._strategy], experiment.loader.steps_per_epoch)
        async with polling(partial(self._look, deployer, layers, again)):
            yield

    async def _look(self, deployer: Deployer, measured: MeasuredLayers, again: ScheduleAgain, _seconds: float) -> None:
        layers, step, before = measured.now(), self._statistics.steps, deployer.placement
        if layers is None or not again.is_due(layers, step):
            return
        started = time.monotonic()
        schedule = await asyncio.to_thread(again.made, layers, step, exchange_bounds(before, measured.ends))
        self._metrics.scheduling_seconds.observe(time.monotonic() - started)
        if schedule is None or deployer.placement is not before:
            return
        exchange = exchange_by(schedule, measured.ends, before.blocks)
        _log.info(
            "another schedule",
            strategy=self._strategy,
            step=step,
            pulled=[list(segment) for segment in exchange.pull],
            pushed=[list(segment) for segment in exchange.push],
            seconds_per_step=round(schedule.step_seconds, 4),
        )
        deployer.want(replace(before, exchange=exchange), Chooser.EXCHANGE)
        self._times.forget()


def make_rescheduling(
    config: EdgeConfig, events: Events, statistics: Statistics, metrics: SharingMetrics
) -> Rescheduling | None:
    """Return what makes the schedules of a run again; None where its schedule stays."""
    if (group := config.member) is None or not is_made_again(group):
        return None
    return Rescheduling(group.schedule, events, statistics, metrics)
