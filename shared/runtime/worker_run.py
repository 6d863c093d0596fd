"""One worker's part in a session under one placement: its steps computed one piece after the other, its links served."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from shared.concurrency.threads import Runner
from shared.errors import ProtocolError
from shared.execution.blocks import PlacedBlocks
from shared.execution.failures import translate_failures
from shared.execution.feedback import Feedback
from shared.execution.steps import Load, Outgoing, Work, WorkerSteps
from shared.model.features import Features
from shared.placement import (
    Arrivals,
    Crossing,
    ModelFacts,
    links,
    program,
    report_parents,
    reports_heard,
    steps_ahead,
    waits_for_all,
)
from shared.runtime.crossing_wire import CrossingWire
from shared.runtime.link_end import Inbox, LinkEnd, LinkStream
from shared.runtime.worker_listener import WorkerListener
from shared.training.block_state import element_bytes
from shared.training.device import synchronise
from shared.training.losses import BatchLoss
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.link_pb2 import StepDone


class Threads(NamedTuple):
    """Where a worker computes, and where it encodes and decodes."""

    compute: Runner
    codecs: Runner


class _Batch(NamedTuple):
    """This worker's samples of a batch that is to begin."""

    step: int
    samples: int
    inputs: Features
    labels: Tensor
    has_begun: asyncio.Event


@dataclass(slots=True)
class _Computed:
    """What this worker has computed of a step."""

    started_seconds: float
    """By time.monotonic."""
    seconds: float = 0.0


class WorkerRun:
    """Steps of one worker from the first to the last that is begun. Used on the event loop."""

    def __init__(
        self,
        wire: CrossingWire,
        model: ModelFacts,
        blocks: PlacedBlocks,
        threads: Threads,
        listener: WorkerListener,
        first_step: int = 0,
        step_log: StepLog | None = None,
        *,
        training: bool = True,
    ) -> None:
        """step_log: gets every step that is done here, with what has come for it. training: False evaluates batches."""
        placement, worker = wire.placement, blocks.worker
        self.worker = worker
        self.next_step = first_step
        """The first step that this worker has not done."""
        self.begun_step = first_step
        """Where samples enter: the step that begins next."""
        self._threads = threads
        self._listener = listener
        self._step_log = step_log
        self._to_log: dict[int, dict[str, list[memoryview]]] = defaultdict(dict)
        """Of every step under way, what has come for it, where there is a log of steps."""
        self._blocks = blocks
        self._steps = WorkerSteps(placement, model, worker, blocks, training=training)
        self._arrivals = Arrivals(placement, model, worker, first_step, training=training)
        self._ahead = steps_ahead(placement, model, training=training)
        self._waits_for_all = waits_for_all(placement, model, worker, training=training)
        operations = {name: program(placement, model, name, training=training) for name in placement.workers}
        self._is_idle = not operations[worker]
        feedback = Feedback(blocks.feedback, self._steps.receives)
        inbox = Inbox(
            self._steps, self._arrivals, feedback, self._note_delivered, self._hear_done, self._hear_stopping, listener
        )
        self.links = {
            peer: LinkEnd(wire, operations[worker], self._ahead, peer, inbox, threads.codecs, first_step)
            for link in links(placement, model, training=training)
            if worker in link
            for peer in link
            if peer != worker
        }
        """By the worker at the other end."""
        self._heard = reports_heard(placement, model, worker, training=training)
        """By peer, the workers whose reports come from there."""
        self._next_steps = {name: first_step for names in self._heard.values() for name in names}
        """Of every worker whose reports come here, the step that it does next."""
        self._told = {
            peer: reports_heard(placement, model, peer, training=training).get(worker, frozenset())
            for peer in self.links
        }
        """By peer, the workers whose reports this one brings there."""
        self._parent = self.links.get(report_parents(placement, model, training=training).get(worker, ""))
        self._stopping: set[str] = set()
        """The workers that are about to stop."""
        self._something_new = asyncio.Event()
        self._next_batch: _Batch | None = None
        self._computed: dict[int, _Computed] = {}
        self._computing: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The steps that are under way here."""
        return self._steps.in_flight

    @property
    def waiting(self) -> dict[str, int]:
        """What waits: steps for this worker's turn to compute them, and what goes to others for the links."""
        return {"compute": self._steps.waiting, "send": sum(link.waiting for link in self.links.values())}

    @property
    def oldest_step(self) -> int:
        """The first step that not every worker has done, as far as it is known here."""
        return min((self.next_step, *self._next_steps.values()))

    @property
    def has_failed(self) -> bool:
        """Whether a step failed half-way here, so that nothing can go on from what is in memory."""
        computing = self._computing
        return computing is not None and computing.done() and not computing.cancelled()

    @property
    def batches_in_flight(self) -> int:
        """Where samples enter: batches that have begun and that hold up others; K + 1 at most, where K bounds anything."""
        return self.begun_step - self._oldest(self.begun_step)

    def catch_up(self, step: int) -> None:
        """Where this worker has no part in a step it is at the one that the others begin next; nothing happens otherwise."""
        if self._is_idle:
            for passed in range(self.next_step, step):
                self._log_step(passed)
            self.next_step = max(self.next_step, step)

    def start(self) -> None:
        """Begin to compute whatever can be computed, until `stop`."""
        self._computing = asyncio.create_task(self._compute())

    async def stop(self) -> None:
        """Compute no more. When this returns, nothing is being computed."""
        if self._computing is not None:
            self._computing.cancel()
            await asyncio.wait({self._computing})
        await self._threads.compute.run(_nothing)  # a call that was under way goes on after its caller

    async def serve(
        self, peer: str, stream: LinkStream, end_writing: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serve a stream of the link to a peer, until it is ended; see `LinkEnd.run`. Computing must have been started.

        Raises ProtocolError where there is no such link, the IsthmusError that ends the stream, and what computing fails with.
        """
        assert self._computing is not None, "start comes first"
        if (end := self.links.get(peer)) is None:
            raise ProtocolError(f"there is no link between {self.worker!r} and {peer[:40]!r} under this placement")
        serving = asyncio.create_task(end.run(stream, end_writing))
        try:
            await asyncio.wait({serving, self._computing}, return_when=asyncio.FIRST_COMPLETED)
            if self._computing.done() and not self._computing.cancelled():
                self._computing.result()
            elif serving.done():
                serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def keep_links(self) -> None:
        """Have the links stay that this worker has dialled, until `end_links`."""
        for link in self.links.values():
            link.keep()

    def end_links(self) -> None:
        """Have the links end that this worker has dialled, once nothing is under way; `serve` returns then."""
        for link in self.links.values():
            link.end()

    @property
    def failure(self) -> "asyncio.Task[None]":
        """Ends with what computing fails with, if it fails. Computing must have been started."""
        assert self._computing is not None, "start comes first"
        return self._computing

    def say_stopping(self) -> None:
        """Tell the agent, through whoever passes reports on, that this worker is about to stop."""
        self._note_stopping(self.worker)

    async def begin(self, step: int, samples: int, inputs: Features, labels: Tensor) -> None:
        """Begin the next batch as soon as no more than K others are under way; see `WorkerSteps.begin`.

        One that waits here begins the moment that it may, before this worker turns to anything else.
        """
        batch = self._next_batch = _Batch(step, samples, inputs, labels, asyncio.Event())
        self._begin_next()
        try:
            await batch.has_begun.wait()
        finally:
            self._next_batch = None

    def _begin_next(self) -> None:
        batch = self._next_batch
        if batch is None or not self._may_begin(batch.step):
            return
        self._next_batch = None
        self.begun_step = batch.step + 1
        batch.has_begun.set()
        self._post(self._steps.begin(batch.step, batch.samples, batch.inputs, batch.labels))
        self._note_to_log(batch.step, "samples", (*batch.inputs, batch.labels))
        if batch.step not in self._steps.in_flight:  # it only has the samples
            self._log_step(batch.step)
            self._end_step(batch.step, None)
        self._wake()

    def _may_begin(self, step: int) -> bool:
        return step - self._oldest(step) <= self._ahead

    def _oldest(self, step: int) -> int:
        """The oldest step that is under way where `step` begins next, as far as that has to wait for it."""
        oldest = min((*self._steps.in_flight, step))
        return oldest if self._waits_for_all else min(oldest, *self._next_steps.values())

    async def _compute(self) -> None:
        while True:
            work = self._steps.next_work()
            if work is None:
                self._something_new.clear()
                await self._something_new.wait()
            else:
                await self._do(work)

    async def _do(self, work: Work) -> None:
        outgoing, started, ended = await self._threads.compute.run(self._timed, work)
        self._computed.setdefault(work.step, _Computed(started)).seconds += ended - started
        self._listener.computed(work.step, work.what, started, ended)
        loss = self._steps.finish(work)
        self._post(outgoing)
        if work.segment + 1 == self._steps.answering_segments:
            self._arrivals.answered(work.step)
        if work.ends_step:
            self._end_step(work.step, loss)

    def _timed(self, work: Work) -> tuple[list[Outgoing], float, float]:
        """What a piece of work has to send, and when it began and ended."""
        started = time.monotonic()
        with translate_failures(f"step {work.step} at {self.worker!r}", self._blocks.held.device):
            outgoing = work.run()
            synchronise(self._blocks.held.device)
            if work.ends_step:
                self._log_step(work.step)
        return outgoing, started, time.monotonic()

    def _log_step(self, step: int) -> None:
        if self._step_log is not None:
            came = self._to_log.pop(step, {})
            self._step_log.applied(step, *(part for _, parts in sorted(came.items()) for part in parts))

    def _note_delivered(self, step: int, crossing: Crossing, load: Load) -> None:
        # What came as a file has its tensors in any order.
        self._note_to_log(
            step, str(crossing), [load[name] for name in sorted(load)] if isinstance(load, dict) else load
        )
        self._wake()

    def _note_to_log(self, step: int, what: str, tensors: Iterable[Tensor | None]) -> None:
        if self._step_log is not None:
            self._to_log[step][what] = [element_bytes(tensor) for tensor in tensors if tensor is not None]

    def _post(self, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            self.links[one.crossing.receiver].send(one)

    def _end_step(self, step: int, loss: BatchLoss | None) -> None:
        self.next_step = step + 1
        self._listener.step_ended(step, max((*self._steps.in_flight, step)) - step)
        done = StepDone(worker=self.worker, step=step, no_gradient=self._blocks.passes_no_gradient)
        if (computed := self._computed.pop(step, None)) is not None:
            done.compute_seconds = computed.seconds
            done.compute_start_nanoseconds = int(computed.started_seconds * 1e9)
        if loss is not None:
            done.loss, done.samples = loss.loss, loss.samples
            if loss.correct is not None:
                done.correct = loss.correct
        for peer, link in self.links.items():
            if (rate := link.bits_per_second) is not None:
                done.rates.add(to=peer, bits_per_second=rate)
        self._listener.step_done(done)
        self._pass_on(done, self.worker)
        self._begin_next()

    def _hear_done(self, done: StepDone, peer: str) -> None:
        """A peer says that a worker has done a step. Raises ProtocolError unless it passes that on, and the step is next."""
        if done.worker in self._heard.get(peer, ()):
            if (expected := self._next_steps[done.worker]) != done.step:
                raise ProtocolError(
                    f"{peer!r} says that {done.worker!r} has done step {done.step}; of it, step {expected} is next"
                )
            self._next_steps[done.worker] = done.step + 1
            self._listener.step_done(done)
            self._pass_on(done, peer)
        elif done.worker != peer:
            raise ProtocolError(f"{peer!r} says what {done.worker[:40]!r} has done; others pass that on")
        self._begin_next()

    def _pass_on(self, done: StepDone, source: str) -> None:
        """Tell those that hear it by this worker, and those that nothing else shows how far this worker is.

        source: the peer that it came from, or this worker. Loss and other figures go on the way to the first worker alone: they
        tell of labels and outputs, and whoever only counts steps may have neither.
        """
        bare = StepDone(worker=done.worker, step=done.step)
        for peer, link in self.links.items():
            shows_nothing = source == self.worker and not link.has_leaving
            if done.worker in self._told[peer] or shows_nothing:
                link.report(done if link is self._parent else bare)

    def _hear_stopping(self, worker: str, peer: str) -> None:
        """A peer says that a worker is about to stop. Raises ProtocolError for one that others speak for."""
        if worker not in self._heard.get(peer, ()):
            raise ProtocolError(f"{peer!r} says that {worker[:40]!r} is about to stop; others pass that on")
        self._note_stopping(worker)

    def _note_stopping(self, worker: str) -> None:
        """A worker is about to stop: pass it on towards the agent. A new stream tells it again."""
        if worker in self._stopping:
            return
        self._stopping.add(worker)
        self._listener.peer_stops(worker)
        if self._parent is not None:
            self._parent.tell_stopping(worker)

    def _wake(self) -> None:
        self._something_new.set()


def _nothing() -> None:
    pass
