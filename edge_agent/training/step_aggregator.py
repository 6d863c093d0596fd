"""The workers' reports of each step, put together."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from edge_agent.training.events import StepFinished
from shared.errors import IsthmusError
from shared.events import Events
from shared.events.worker import WorkerDone, WorkerRepeated
from shared.placement import AGENT
from shared.runtime.placed_worker import PlacedWorker
from shared.training.loss_scale import LossScale
from shared.training.losses import BatchLoss, whole_loss
from shared.wire.isthmus.v1.link_pb2 import StepDone

_log = structlog.get_logger(__name__)


class StepAggregator:
    """A reader of the reports of all workers, which come by this device's worker. Used on the event loop."""

    def __init__(
        self,
        events: Events,
        worker: PlacedWorker,
        check_loss: Callable[[int, float], None],
        loss_scale: LossScale | None = None,
    ) -> None:
        """worker: of this device, before its first step. check_loss: raises an IsthmusError for a loss that ends the run.

        loss_scale: by which losses are scaled, if they are.
        """
        self._loss_scale = loss_scale
        self._emit = events.emit
        events.subscribe(WorkerDone, self._note_done)
        events.subscribe(WorkerRepeated, lambda _event: self._look_at_goal())
        self._worker = worker
        self._check_loss = check_loss
        self._reports: dict[int, list[StepDone]] = {}
        self._warned_of_no_gradient = False
        self._loop = asyncio.get_running_loop()
        self._goal = 0
        self._reached: asyncio.Future[None] = self._loop.create_future()
        """Ends when `done_step` is at the goal."""
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Ends with the error of a loss that ends the run."""
        self._count_from_here()

    def begin_again(self) -> None:
        """Begin the steps under the placement that is in force now, or after those that have to be done once more."""
        self._reports.clear()
        self._count_from_here()

    def _count_from_here(self) -> None:
        self._window = self._worker.executor.window
        """Counts of the steps under the placement in force."""
        plan = self._window.plan
        self._names = tuple(name for name in plan.placement.workers if plan.program(name))

    @property
    def done_step(self) -> int:
        """Return the first step that some worker has not done."""
        return self._window.settled

    def reaching(self, step: int) -> "asyncio.Future[None]":
        """Return a future that ends once every worker has done all steps before this one. The former future is dropped."""
        self._goal, self._reached = step, self._loop.create_future()
        self._look_at_goal()
        return self._reached

    def _look_at_goal(self) -> None:
        if self._window.settled >= self._goal and not self._reached.done():
            self._reached.set_result(None)

    def _note_done(self, event: WorkerDone) -> None:
        """Note that one worker has done its part. Steps end one after the other. After one that ends the run, none does."""
        done = event.report
        if done.no_gradient and not self._warned_of_no_gradient:
            self._warned_of_no_gradient = True
            _log.warning(
                "blocks pass no gradient on in some steps, in which the blocks before them do not learn",
                worker=done.worker,
                step=done.step,
            )
        reports = self._reports.setdefault(done.step, [])
        reports.append(done)
        if len(reports) == len(self._names) and not self.failure.done():
            self._end(done.step, self._reports.pop(done.step))

    def _end(self, step: int, reports: Sequence[StepDone]) -> None:
        parts: list[BatchLoss] = []
        seconds, rates = [0.0], list[float]()
        for done in reports:
            if done.samples:
                parts.append(BatchLoss(done.loss, done.correct if done.HasField("correct") else None, done.samples))
            if done.worker != AGENT:
                seconds.append(done.compute_seconds)
                rates += [rate.bits_per_second for rate in done.rates if rate.to == AGENT]
        loss = whole_loss(parts)
        finished = StepFinished(
            step=step,
            samples=loss.samples,
            loss=loss.loss,
            compute_seconds=max(seconds),
            downlink_bits_per_second=min(rates, default=0.0),
            loss_scale=None if self._loss_scale is None else self._loss_scale.now,
            skipped_updates=None if self._loss_scale is None else self._loss_scale.skipped,
        )
        self._emit(finished)
        try:
            self._check_loss(step, loss.loss)
        except IsthmusError as failure:
            self.failure.set_exception(failure)
        self._look_at_goal()
