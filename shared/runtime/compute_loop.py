"""The computation of one worker: the batches that begin at it, their arrivals, and pieces of work, one after the other.

The steps belong to the compute thread. Loads come to it by one queue, and finished work goes to the event loop by
another. The event loop only begins a turn of the thread. A turn computes all work that is ready, a new batch included,
until none is left or others want the thread. So no work waits for the event loop needlessly.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from shared.concurrency.result_queue import ResultQueue
from shared.concurrency.threads import Runner, finish_calls
from shared.execution.failures import raise_failure
from shared.execution.step_in_flight import Parcel
from shared.execution.step_scheduler import StepScheduler, Work
from shared.model.features import Features
from shared.placement import Cargo
from shared.runtime.load_queue import LoadQueue
from shared.runtime.step_record import StepRecord
from shared.training.device import synchronise
from shared.training.losses import BatchLoss

LATEST_SECONDS = 0.02
"""Longest delay before the event loop is notified of finished work that no other worker waits for, if work takes as
long as before."""
MOST_UNTAKEN = 8
"""Maximum unreported pieces of work. It bounds the number of quick steps by which a request for a boundary comes too late."""


class Samples(NamedTuple):
    """The part of a batch that is one worker's."""

    whole: int
    """The samples of the whole batch, or where features are recalled those that are here of it."""
    inputs: Features
    labels: Features
    numbers: Tensor | None = None
    """Numbers of all samples of the batch, int32. Where features are recalled, those whose feature was sent are not here."""
    counts: Tensor | None = None
    """Counts of the labels of the batch, where the loss goes by them."""


class BatchSource(Protocol):
    """The source of a worker's samples, batch after batch."""

    @property
    def holds_one(self) -> bool:
        """Tell whether a batch is read. Asked on the compute thread."""

    @property
    def is_ready(self) -> bool:
        """Tell whether `make_ready` would find a batch, or read one. Asked on the event loop and on the compute thread."""

    @property
    def reads_long(self) -> bool:
        """Tell whether `make_ready` would read a batch that others should not wait for. Asked on the compute thread."""

    def make_ready(self) -> bool:
        """Make the next batch ready if that takes no time, and tell whether it is. Called on the compute thread."""

    def take(self) -> Samples:
        """The next batch, which is ready. Called on the compute thread."""


class Departing(NamedTuple):
    """Loads that leave as a batch begins, or, of its samples, before."""

    step: int
    outgoing: list[Parcel]
    ends_step: bool
    """True if this worker has nothing to compute for the step."""


class SegmentDone(NamedTuple):
    """A piece of work is done."""

    step: int
    what: str
    """See `Work.what`."""
    outgoing: list[Parcel]
    started_seconds: float
    """By time.monotonic, as `ended_seconds`."""
    ended_seconds: float
    ends_step: bool
    loss: BatchLoss | None
    """Loss of this worker's part, once it is computed."""
    staleness: int
    """Number of steps that had begun here since this one, before another could in its place."""
    segment: int
    """Segment of the worker's program that was computed."""


Results = ResultQueue[Departing | SegmentDone]
"""Finished work of the compute thread on its way to the event loop: `MOST_UNTAKEN` pieces at most."""


class ComputeLoop:
    """The steps of one worker, computed on a thread. Made on any thread, and used on the event loop."""

    def __init__(
        self,
        scheduler: StepScheduler,
        loads: LoadQueue,
        results: Results,
        record: StepRecord | None,
        thread: Runner,
        changed: asyncio.Event,
    ) -> None:
        """scheduler, record: belong to the thread from here on. record: None where steps are not logged.

        changed: set when more may begin or be computed.
        """
        self._window = window = scheduler.window
        self._scheduler = scheduler
        self._loads = loads
        self._results = results
        self._record = record
        self._thread = thread
        self._device = scheduler.device
        self._changed = changed
        self._is_awaited = bool(window.plan.peers(window.worker))
        """True if others wait for finished work, so that the event loop must hear of it at once."""
        self._loop: asyncio.AbstractEventLoop
        self._untaken_since = math.inf
        """Time at which the first unreported piece was done, where nobody waits. The compute thread's own."""
        self._cleared_at: dict[int, int] = {}
        """Staleness of each step that is cleared and not done. The compute thread's own."""
        self._taking = threading.Lock()
        """Lock held while a batch is taken, so that the end of reading knows the batches that are taken."""
        self._source: BatchSource | None = None
        self._stop_step = window.fed
        self._is_computing = False

    @property
    def is_computing(self) -> bool:
        """Tell whether this worker computes, or waits for its turn on the thread. On the event loop."""
        return self._is_computing

    def read_from(self, source: BatchSource, stop_step: int) -> None:
        """Begin batches of a source, the steps before `stop_step`, as soon as each is ready and the window lets it.

        A batch that waits for that begins the moment that it may, before this worker turns to anything else. Its samples leave
        before, where they may.
        """
        with self._taking:
            self._source, self._stop_step = source, stop_step
        self._changed.set()

    def read_until(self, stop_step: Callable[[int], int]) -> int:
        """Take no batch from a step on, until the next `read_from`; returns the step. Batches that are taken begin even so.

        stop_step: this step, given that which would be taken next.
        """
        with self._taking:
            self._stop_step = stop_step(self._window.fed)
            if self._stop_step == self._window.fed:
                self._source = None
            return self._stop_step

    def note_ready(self) -> None:
        """The source has a batch that it had not. Called on any thread."""
        if not self._is_computing:  # the computing thread looks for itself
            self._loop.call_soon_threadsafe(self._changed.set)

    def fail(self, failure: Exception) -> None:
        """End with an error that came from elsewhere, unless an earlier one ends it. On the event loop."""
        self._results.failure = self._results.failure or failure
        self._changed.set()

    def start(self) -> "asyncio.Task[None]":
        """Compute all work that is ready, until the task is ended.

        It fails with the error of work, or of taking a result.
        """
        self._loop = asyncio.get_running_loop()
        self._results.open()
        return self._loop.create_task(self._give_turns())

    async def stop(self, running: "asyncio.Task[None] | None") -> None:
        """End `running`, which `start` has returned; when this returns, nothing is being computed."""
        self._results.close()  # before anything is waited for: the thread looks at it after each piece
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        await finish_calls(self._thread)

    async def _give_turns(self) -> None:
        more_is_left = False
        while self._results.failure is None:
            self._changed.clear()
            if not (more_is_left or self._loads.ready or self._may_begin_now()):
                await self._changed.wait()
                continue
            self._is_computing = True
            try:
                more_is_left = await self._thread.run(self._turn)
            finally:
                self._is_computing = False
                self._results.take_all()
        raise self._results.failure

    def _may_begin_now(self) -> bool:
        window, admitted = self._window, self._window.admitted
        if window.begun < min(window.fed, admitted):
            return True
        source = self._source
        return source is not None and self._may_take(admitted) and source.is_ready

    # The rest runs on the compute thread.

    def _turn(self) -> bool:
        """Begin batches and compute until another user wants the thread. Returns whether more can be computed."""
        self._untaken_since = math.inf
        has_begun = self._take_in()
        if self._results.is_full or (has_begun and self._is_over):
            return self._scheduler.next_work() is not None
        work = self._scheduler.next_work()
        while work is not None:
            done = self._compute(work)
            if self._is_over:
                return self._scheduler.next_work() is not None
            self._take_in()
            if self._results.is_full:
                return self._scheduler.next_work() is not None
            if (work := self._scheduler.next_work()) is not None and (self._is_awaited or self._is_due(done)):
                self._results.announce()
        if (source := self._source) is not None:
            if self._window.plan.samples_ahead:
                self._take_ahead(source)  # while nothing else can be computed
            self._make_ready(source)
        return False

    @property
    def _is_over(self) -> bool:
        """True if the turn has to end, because others want the thread or the event loop has to look first."""
        return self._results.must_stop or self._thread.is_wanted

    def _compute(self, work: Work) -> SegmentDone:
        started = time.monotonic()
        try:
            outgoing = self._scheduler.run(work)
            synchronise(self._device)
            if work.ends_step and self._record is not None:
                self._record.write(work.step)
        except BaseException as cause:
            raise_failure(f"step {work.step} at {self._scheduler.worker!r}", self._device, cause)
        ended, loss = time.monotonic(), self._scheduler.finish(work)
        staleness = self._staleness_of(work)
        done = SegmentDone(
            work.step, work.what, outgoing, started, ended, work.ends_step, loss, staleness, work.segment
        )
        self._results.put(done)
        return done

    def _staleness_of(self, work: Work) -> int:
        """Count the steps that had begun here since one, until it was cleared: after that, new weights come and no more."""
        staleness = max(self._window.begun - 1 - work.step, 0)
        if self._window.cleared > work.step:
            staleness = self._cleared_at.setdefault(work.step, staleness)
        if work.ends_step:
            self._cleared_at.pop(work.step, None)
        return staleness

    def _take_in(self) -> bool:
        """Take the loads that have come. Begin all batches that may begin and are ready, and take those whose samples may leave
        before and that are read; returns whether any has begun."""
        while self._loads.ready:
            parcel = self._loads.ready.popleft()
            self._scheduler.deliver(parcel)
            if self._record is not None:
                self._record.note_load(parcel)
        first, window = self._window.begun, self._window
        if self._source is None and first >= window.fed:
            return False
        source, admitted = self._source, window.admitted
        while not self._results.is_full:
            if window.begun < min(window.fed, admitted):
                self._begin(window.begun)
                continue
            if source is None or not self._may_take(admitted):
                break
            begins = window.begun < admitted
            if not (begins or source.holds_one) or not self._take_batch(source):
                break
        return window.begun > first

    def _may_take(self, admitted: int) -> bool:
        """Tell whether the next samples may be taken. admitted: see `Window`. Also on the event loop."""
        return self._window.fed < min(self._stop_step, admitted + self._window.plan.samples_ahead)

    def _take_ahead(self, source: BatchSource) -> None:
        """Take batches whose samples may leave before they begin, also those that are not read."""
        while self._may_take(self._window.admitted) and not self._results.is_full and self._take_batch(source):
            pass

    def _take_batch(self, source: BatchSource) -> bool:
        """Take the next batch of a source, of which one may be taken, if it is ready; returns whether it was."""
        if not self._make_ready(source):
            return False
        with self._taking:
            if self._source is not source or not self._may_take(
                self._window.admitted
            ):  # since it was read; it stays ready
                return False
            step, batch = self._window.fed, source.take()
            outgoing = self._scheduler.feed(step, *batch)
        if self._record is not None:
            self._record.note(step, "samples", (*batch.inputs, *batch.labels))
        if outgoing:
            self._put_departing(Departing(step, outgoing, ends_step=False))
        return True

    def _make_ready(self, source: BatchSource) -> bool:
        """Prepare as `BatchSource` says. Awaited results are reported before a long read."""
        if self._is_awaited and source.reads_long:
            self._results.announce()
        return source.make_ready()

    def _begin(self, step: int) -> None:
        outgoing = self._scheduler.begin(step)
        ends_step = self._window.done > step
        if ends_step and self._record is not None:
            self._record.write(step)
        if outgoing or ends_step:
            self._put_departing(Departing(step, outgoing, ends_step))

    def _put_departing(self, departing: Departing) -> None:
        self._results.put(departing)
        for one in departing.outgoing:
            if one.crossing.cargo is Cargo.FEATURE:
                self._results.announce()  # before this worker computes: samples take a link longer than anything else
                break

    def _is_due(self, done: SegmentDone) -> bool:
        """Tell whether the event loop must hear of finished work before the next piece is done."""
        self._untaken_since = min(self._untaken_since, done.ended_seconds)
        next_ends = done.ended_seconds + (done.ended_seconds - done.started_seconds)
        if next_ends <= self._untaken_since + LATEST_SECONDS:
            return False
        self._untaken_since = math.inf
        return True
