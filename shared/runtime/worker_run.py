"""One worker's part in a session under one placement: its steps computed one piece after the other, its links served."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from shared.concurrency.threads import Runner
from shared.errors import ProtocolError
from shared.execution.blocks import PlacedBlocks
from shared.execution.feedback import Feedback
from shared.execution.steps import Outgoing, Work, WorkerSteps
from shared.model.features import Features
from shared.placement import Arrivals, ModelFacts, links, program, report_parents, steps_ahead, waits_for_all
from shared.runtime.crossing_wire import CrossingWire
from shared.runtime.link_end import Inbox, LinkEnd
from shared.training.losses import BatchLoss
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


class WorkerRun:
    """Steps of one worker from the first to the last that is begun. Used on the event loop."""

    def __init__(
        self,
        wire: CrossingWire,
        model: ModelFacts,
        blocks: PlacedBlocks,
        threads: Threads,
        on_done: Callable[[StepDone], None],
        first_step: int = 0,
    ) -> None:
        """on_done: told that a worker has done a step, of every worker whose reports come by here."""
        placement, worker = wire.placement, blocks.worker
        self.worker = worker
        self._threads = threads
        self._on_done = on_done
        self._steps = WorkerSteps(placement, model, worker, blocks)
        self._arrivals = Arrivals(placement, model, worker, first_step)
        inbox = Inbox(
            self._steps, self._arrivals, Feedback(blocks.feedback, self._steps.receives), self._wake, self._hear_done
        )
        self.links = {
            peer: LinkEnd(wire, model, peer, inbox, threads.codecs, first_step)
            for link in links(placement, model)
            if worker in link
            for peer in link
            if peer != worker
        }
        """By the worker at the other end."""
        self._ahead = steps_ahead(placement, model)
        self._waits_for_all = waits_for_all(placement, model, worker)
        self._next_steps = {
            name: first_step for name in placement.workers if name != worker and program(placement, model, name)
        }
        """Of every other worker whose reports come by here, the step that it does next."""
        parents = report_parents(placement, model)
        self._children = {child for child, parent in parents.items() if parent == worker}
        self._parent = self.links.get(parents.get(worker, ""))
        self._something_new = asyncio.Event()
        self._next_batch: _Batch | None = None
        self._seconds: dict[int, float] = {}

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
        batch.has_begun.set()
        self._post(self._steps.begin(batch.step, batch.samples, batch.inputs, batch.labels))
        if batch.step not in self._steps.in_flight:  # it only has the samples
            self._tell_done(batch.step, None)
        self._wake()

    def _may_begin(self, step: int) -> bool:
        oldest = min((*self._steps.in_flight, step))
        if not self._waits_for_all:
            oldest = min(oldest, *self._next_steps.values())
        return step - oldest <= self._ahead

    async def run(self) -> None:
        """Compute whatever can be computed, until this is cancelled. Raises the IsthmusError that a block fails with."""
        while True:
            work = self._steps.next_work()
            if work is None:
                self._something_new.clear()
                await self._something_new.wait()
            else:
                await self._do(work)

    async def _do(self, work: Work) -> None:
        outgoing, seconds = await self._threads.compute.run(_timed, work)
        self._seconds[work.step] = self._seconds.get(work.step, 0.0) + seconds
        loss = self._steps.finish(work)
        self._post(outgoing)
        if work.segment + 1 == self._steps.answering_segments:
            self._arrivals.answered(work.step)
        if work.ends_step:
            self._tell_done(work.step, loss)

    def _post(self, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            self.links[one.crossing.receiver].send(one)

    def _tell_done(self, step: int, loss: BatchLoss | None) -> None:
        done = StepDone(worker=self.worker, step=step, compute_seconds=self._seconds.pop(step, 0.0))
        if loss is not None:
            done.loss, done.samples = loss.loss, loss.samples
            if loss.correct is not None:
                done.correct = loss.correct
        self._on_done(done)
        for link in self.links.values():
            if link is self._parent or not link.has_leaving:
                link.report(done)
        self._begin_next()

    def _hear_done(self, done: StepDone, peer: str) -> None:
        """A peer says that a worker has done a step. Raises ProtocolError unless it passes that on, and the step is next."""
        if peer in self._children:
            if self._next_steps.get(done.worker) != done.step:
                raise ProtocolError(
                    f"{peer!r} says that {done.worker[:40]!r} has done step {done.step}; of it, step "
                    f"{self._next_steps.get(done.worker, 'none')} is next"
                )
            self._next_steps[done.worker] = done.step + 1
            self._on_done(done)
            if self._parent is not None:
                self._parent.report(done)
        elif done.worker != peer:
            raise ProtocolError(f"{peer!r} says what {done.worker[:40]!r} has done; others pass that on")
        self._begin_next()

    def _wake(self) -> None:
        self._something_new.set()


def _timed(work: Work) -> tuple[list[Outgoing], float]:
    """What a piece of work has to send, and the seconds that it took."""
    began = time.perf_counter()
    return work.run(), time.perf_counter() - began
