"""The computation of one worker: the batches that begin at it, their arrivals, and pieces of work, one after the other.

The event loop hands over a first piece. The compute thread continues by itself with everything that can be computed then, a
batch that may begin included, until nothing is left or others want the thread. So no work waits for the event loop needlessly.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from shared.concurrency.threads import Runner
from shared.execution.failures import translate_failures
from shared.execution.steps import Load, Outgoing, Work, WorkerSteps
from shared.model.features import Features
from shared.placement import Crossing
from shared.runtime.step_record import StepRecord
from shared.training.device import synchronise
from shared.training.losses import BatchLoss

LATEST_SECONDS = 0.02
"""Longest delay before the event loop is notified of finished work that no other worker waits for, if work takes as
long as before."""
MOST_UNHEARD = 8
"""Maximum unreported pieces of work. It bounds the number of quick steps by which a request for a boundary comes too late."""


class Samples(NamedTuple):
    """The part of a batch that is one worker's."""

    whole: int
    """The samples of the whole batch."""
    inputs: Features
    labels: Tensor


class BatchSource(Protocol):
    """The source of a worker's samples, batch after batch."""

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


class Begun(NamedTuple):
    """A batch has begun."""

    step: int
    outgoing: list[Outgoing]
    ends_step: bool
    """True if this worker has nothing to compute for the step."""


class Computed(NamedTuple):
    """A piece of work is done."""

    step: int
    what: str
    """See `Work.what`."""
    outgoing: list[Outgoing]
    started_seconds: float
    """By time.monotonic, as `ended_seconds`."""
    ended_seconds: float
    answers: bool
    """True if another step may come to this worker now."""
    ends_step: bool
    loss: BatchLoss | None
    """Loss of this worker's part, once it has done the step."""
    staleness: int
    """Number of steps that had begun here since this one."""
    segment: int
    """Segment of the worker's program that was computed."""


class Computing:
    """The steps of one worker, computed on a runner. Used on the event loop but where something else is said.

    Made on any thread. The steps belong to the compute thread while a call of it goes on, and to the event loop otherwise;
    what comes meanwhile waits in a queue.
    """

    def __init__(
        self,
        steps: WorkerSteps,
        device: torch.device,
        runner: Runner,
        record: StepRecord,
        may_begin: Callable[[int], bool],
        hear: Callable[[Begun | Computed], None],
        first_step: int,
        *,
        is_awaited: bool,
    ) -> None:
        """may_begin: whether a step may begin now, asked where the steps are used. hear: told what is done, on the event loop.

        is_awaited: whether others wait for what is done, so that it is to be heard of at once.
        """
        self.begun_step = first_step
        """Step that begins next, where samples enter."""
        self._steps = steps
        self._device = device
        self._runner = runner
        self._record = record
        self._may_begin = may_begin
        self._hear = hear
        self._is_awaited = is_awaited
        self._loop: asyncio.AbstractEventLoop
        self._arrived: deque[tuple[int, int, Crossing, Load]] = deque()
        self._news: deque[Begun | Computed] = deque()
        self._is_told = False
        """True while the event loop was told that the thread has news, and has not looked yet."""
        self._unheard_since = math.inf
        """Time at which the first unreported piece was done. The compute thread's own."""
        self._feeding = threading.Lock()
        """Held while a batch begins, so that whoever ends the feeding knows which have."""
        self._source: BatchSource | None = None
        self._stop_step = first_step
        self._something_new = asyncio.Event()
        self._is_computing = self._is_stopped = False
        self._defect: Exception | None = None
        """Error that `hear` has raised while the thread was computing."""

    def feed(self, source: BatchSource, stop_step: int) -> None:
        """Begin batches of a source, the steps before `stop_step`, whenever one is ready and may begin."""
        with self._feeding:
            self._source, self._stop_step = source, stop_step
        self.wake()

    def feed_no_more(self) -> int:
        """Begin no batch any more, until the next `feed`; returns the step that would be the next."""
        with self._feeding:
            self._source, self._stop_step = None, self.begun_step
        return self.begun_step

    def deliver(self, step: int, samples: int, crossing: Crossing, load: Load) -> None:
        """Something has come, decoded."""
        self._arrived.append((step, samples, crossing, load))
        self.wake()

    def wake(self) -> None:
        """Look whether anything more can begin or be computed."""
        self._something_new.set()

    def note_ready(self) -> None:
        """The source has a batch that it had not. Called on any thread."""
        if not self._is_computing:  # whoever is computing looks for itself
            self._loop.call_soon_threadsafe(self.wake)

    def start(self) -> "asyncio.Task[None]":
        """Compute whatever can be computed, until the task is ended. It fails with what work, or `hear`, fails with."""
        self._loop = asyncio.get_running_loop()
        return self._loop.create_task(self._run())

    async def _run(self) -> None:
        while True:
            if self._defect is not None:
                raise self._defect
            self._something_new.clear()
            self._take_arrived()
            self._hear_all()
            source = self._source_to_begin()
            begins = source is not None and source.is_ready  # before this worker turns to anything else
            work = None if begins else self._steps.next_work()
            if not begins and work is None:
                await self._something_new.wait()
                continue
            self._is_computing = True
            try:
                await self._runner.run(self._go_on, work)
            except Exception:
                self._hear_all()
                raise
            self._is_computing = False
            self._hear_all()

    async def stop(self, running: "asyncio.Task[None] | None") -> None:
        """End `running`, which `start` has returned; when this returns, nothing is being computed."""
        self._is_stopped = True  # before anything is waited for: the thread looks at it after each piece
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        await self._runner.run(_nothing)  # a call that was under way goes on after its caller

    def _go_on(self, work: Work | None) -> None:
        """On the compute thread: this piece of work, or batches that may begin, and what can be computed then."""
        self._unheard_since = math.inf
        if work is None:
            self._begin_batches()
            work = None if self._runner.is_wanted else self._steps.next_work()
        while work is not None:
            done = self._compute(work)
            if (
                self._is_stopped
                or self._defect is not None
                or self._runner.is_wanted
                or len(self._news) >= MOST_UNHEARD
            ):
                return
            self._take_arrived()
            self._begin_batches()
            if (work := self._steps.next_work()) is not None:
                self._tell(done)
        if (source := self._source) is not None:
            self._make_ready(source)  # while nothing else can be computed

    def _compute(self, work: Work) -> Computed:
        started = time.monotonic()
        with translate_failures(f"step {work.step} at {self._steps.worker!r}", self._device):
            outgoing = work.run()
            synchronise(self._device)
            if work.ends_step:
                self._record.write(work.step)
        ended, loss = time.monotonic(), self._steps.finish(work)
        answers = work.segment + 1 == self._steps.answering_segments
        staleness = max(self._steps.newest(work.step) - work.step, 0)
        done = Computed(
            work.step, work.what, outgoing, started, ended, answers, work.ends_step, loss, staleness, work.segment
        )
        self._news.append(done)
        return done

    def _take_arrived(self) -> None:
        """Deliver the loads that have come to the steps, on the thread that uses them."""
        while self._arrived:
            step, samples, crossing, load = self._arrived.popleft()
            self._steps.deliver(step, samples, crossing, load)
            self._record.note_load(step, crossing, load)

    def _source_to_begin(self) -> BatchSource | None:
        """The source of which a batch may begin; None where none may."""
        may_begin = self.begun_step < self._stop_step and self._may_begin(self.begun_step)
        return self._source if may_begin else None

    def _begin_batches(self) -> None:
        """On the compute thread: all that may begin and are ready."""
        while (source := self._source_to_begin()) is not None and self._make_ready(source):
            with self._feeding:
                if self._source_to_begin() is source:  # else the feeding ended while the batch was read; it stays ready
                    self._begin(self.begun_step, source.take())

    def _make_ready(self, source: BatchSource) -> bool:
        """On the compute thread: see `BatchSource`. What others wait for is heard of before anything is read for long."""
        if self._is_awaited and source.reads_long:
            self._tell_at_once()
        return source.make_ready()

    def _begin(self, step: int, batch: Samples) -> None:
        outgoing = self._steps.begin(step, batch.whole, batch.inputs, batch.labels)
        self._record.note(step, "samples", (*batch.inputs, batch.labels))
        self.begun_step = step + 1
        ends_step = not self._steps.has(step)
        if ends_step:
            self._record.write(step)
        if outgoing or ends_step:
            self._news.append(Begun(step, outgoing, ends_step))

    def _tell(self, done: Computed) -> None:
        """On the compute thread, have the event loop hear what is new, unless that can wait one piece more."""
        self._unheard_since = min(self._unheard_since, done.ended_seconds)
        next_ends = done.ended_seconds + (done.ended_seconds - done.started_seconds)
        if self._is_awaited or next_ends > self._unheard_since + LATEST_SECONDS:
            self._tell_at_once()

    def _tell_at_once(self) -> None:
        self._unheard_since = math.inf
        if self._news and not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._hear_beside)

    def _hear_beside(self) -> None:
        """Hear the news while the thread continues."""
        try:
            self._hear_all()
        except Exception as defect:
            self._defect = defect
            self.wake()

    def _hear_all(self) -> None:
        self._is_told = False  # first: what comes from here on is told again
        while self._news and not self._is_stopped and self._defect is None:
            self._hear(self._news.popleft())


def _nothing() -> None:
    pass
