"""The workers' reports of each step, put together, and the events of this device's worker."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from edge_agent.training.events import StepFinished
from edge_agent.training.step_boundary import StepBoundary
from shared.errors import IsthmusError
from shared.events import Emit
from shared.events.worker import Computed, Encoded, Received, Sent, StepComputed, WorkerDone
from shared.placement import AGENT, Backward, Window
from shared.runtime.worker_listener import WorkerListener
from shared.training.losses import BatchLoss, whole_loss
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone

_log = structlog.get_logger(__name__)


class StepAggregator(WorkerListener):
    """A listener to this device's worker, through which the reports of all others come. Used on the event loop."""

    def __init__(self, emit: Emit, check_loss: Callable[[int, float], None], boundary: StepBoundary) -> None:
        """check_loss: raises an IsthmusError for a loss that ends the run.

        boundary: requested when a trainer is about to stop.
        """
        self._emit = emit
        self._check_loss = check_loss
        self._boundary = boundary
        self.trainer_stops = False
        """True if a trainer is about to stop, and the run has not reacted yet."""
        self._names: tuple[str, ...] = ()
        self._learns = False
        """True if an error gradient goes back through blocks of this device in every step."""
        self._reports: dict[int, list[StepDone]] = {}
        self._seconds: dict[int, float] = {}
        self._warned_of_no_gradient = False
        self._window: Window
        """Counts of the steps under the placement in force."""
        self._loop = asyncio.get_running_loop()
        self._goal = 0
        self._reached: asyncio.Future[None] = self._loop.create_future()
        """Ends when `done_step` is at the goal."""
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Ends with the error of a loss that ends the run."""

    def begin(self, window: Window) -> None:
        """Begin the steps that a window of this device's worker counts."""
        self._window, plan = window, window.plan
        self._names = tuple(name for name in plan.placement.workers if plan.program(name))
        self._learns = any(isinstance(one, Backward) for one in plan.program(AGENT))
        self._reports.clear()
        self._seconds.clear()

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
        if self.done_step >= self._goal and not self._reached.done():
            self._reached.set_result(None)

    def computed(self, step: int, what: str, start_seconds: float, end_seconds: float, /) -> None:
        """Record T1, and the time line."""
        self._emit(Computed(step, what, start_seconds, end_seconds))
        self._seconds[step] = self._seconds.get(step, 0.0) + end_seconds - start_seconds

    def encoded(self, _peer: str, step: int, start_seconds: float, end_seconds: float, /) -> None:
        """Record the time line."""
        self._emit(Encoded(step, start_seconds, end_seconds))

    def sent(self, peer: str, payload_bytes: int, raw_bytes: int, /) -> None:
        """Count bytes up."""
        self._emit(Sent(peer, payload_bytes, raw_bytes))

    def received(self, peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """Count bytes down."""
        self._emit(Received(peer, tensor, raw_bytes))

    def step_ended(self, step: int, staleness: int, /) -> None:
        """Note that this device has done its part."""
        self._emit(StepComputed(step, self._seconds.pop(step, 0.0), staleness if self._learns else None))

    def step_done(self, done: StepDone, /) -> None:
        """Note that one worker has done its part. Steps end one after the other. After one that ends the run, none does."""
        if done.no_gradient and not self._warned_of_no_gradient:
            self._warned_of_no_gradient = True
            _log.warning(
                "blocks pass no gradient on in some steps, in which the blocks before them do not learn",
                worker=done.worker,
                step=done.step,
            )
        self._emit(WorkerDone(done))
        reports = self._reports.setdefault(done.step, [])
        reports.append(done)
        if len(reports) == len(self._names) and not self.failure.done():
            self._end(done.step, self._reports.pop(done.step))

    def peer_stops(self, worker: str, /) -> None:
        """Note that a trainer is about to stop."""
        if worker != AGENT:
            _log.info("a trainer is about to stop", trainer=worker)
            self.trainer_stops = True
            self._boundary.request()

    def _end(self, step: int, reports: Sequence[StepDone]) -> None:
        parts = [
            BatchLoss(done.loss, done.correct if done.HasField("correct") else None, done.samples)
            for done in reports
            if done.samples
        ]
        loss = whole_loss(parts)
        others = [done for done in reports if done.worker != AGENT]
        finished = StepFinished(
            step=step,
            samples=loss.samples,
            loss=loss.loss,
            compute_seconds=max((done.compute_seconds for done in others), default=0.0),
            downlink_bits_per_second=min(
                (rate.bits_per_second for done in others for rate in done.rates if rate.to == AGENT), default=0.0
            ),
        )
        self._emit(finished)
        try:
            self._check_loss(step, loss.loss)
        except IsthmusError as failure:
            self.failure.set_exception(failure)
        self._look_at_goal()
