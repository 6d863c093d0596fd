"""One worker's part in a session under one placement: its steps computed one piece after the other, its links served."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from shared.bounds import is_step
from shared.concurrency.threads import Runner
from shared.errors import ProtocolError
from shared.execution.blocks import PlacedBlocks
from shared.execution.feedback import Feedback
from shared.execution.steps import Outgoing, WorkerSteps
from shared.placement import Arrivals, StepPlan
from shared.runtime.computing import BatchSource, Begun, Computed, Computing
from shared.runtime.crossing_wire import CrossingWire
from shared.runtime.link_end import Inbox, LinkEnd, LinkStream
from shared.runtime.order import ComputedOrder
from shared.runtime.reports_heard import ReportsHeard
from shared.runtime.step_record import StepRecord
from shared.runtime.worker_listener import WorkerListener
from shared.training.losses import BatchLoss
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.link_pb2 import StepDone

MOST_UNREPORTED = 1024
"""The most steps that may begin beyond the oldest of which not every report is heard: many more than wait for a message."""


class Threads(NamedTuple):
    """The threads of a worker: one to compute, one to encode and decode."""

    compute: Runner
    codecs: Runner


@dataclass(slots=True)
class _Cost:
    """The time that this worker has computed for a step."""

    started_seconds: float
    """By time.monotonic."""
    seconds: float = 0.0


class WorkerRun:
    """Steps of one worker from the first to the last that is begun. Made on any thread, and used on the event loop.

    To make it takes time that grows with what crosses at this worker in a step.
    """

    def __init__(
        self,
        plan: StepPlan,
        wire: CrossingWire,
        blocks: PlacedBlocks,
        threads: Threads,
        listener: WorkerListener,
        first_step: int = 0,
        step_log: StepLog | None = None,
    ) -> None:
        """step_log: gets every step that is done here, with what has come for it."""
        worker = blocks.worker
        self.worker = worker
        self.next_step = first_step
        """The first step that this worker has not done."""
        self._listener = listener
        self._record = StepRecord(step_log)
        self._blocks = blocks
        self._steps = WorkerSteps(plan, blocks)
        self._arrivals = Arrivals(plan, worker, first_step)
        self._ahead = plan.ahead
        self._is_unaware = worker in plan.unaware
        self._is_idle = not plan.program(worker)
        self._heard = ReportsHeard(plan, worker, first_step)
        peers = plan.peers(worker)
        self._computing = Computing(
            self._steps,
            blocks.held.device,
            threads.compute,
            self._record,
            self._may_begin,
            self._hear,
            first_step,
            is_awaited=bool(peers),
        )
        feedback = Feedback(blocks.feedback, self._steps.receives)
        inbox = Inbox(self._computing.deliver, self._arrivals, feedback, self._hear_done, self._hear_stopping, listener)
        self.links = {peer: LinkEnd(plan, wire, worker, peer, inbox, threads.codecs, first_step) for peer in peers}
        """By the worker at the other end."""
        self._told = {peer: plan.reports_heard(peer).get(worker, frozenset()) for peer in self.links}
        """By peer, the workers whose reports this one brings there."""
        self._parent = self.links.get(plan.report_parent(worker) or "")
        self._stopping: set[str] = set()
        """The workers that are about to stop."""
        self._costs: dict[int, _Cost] = {}
        self._order = ComputedOrder(self._steps.segment_count)
        self._task: asyncio.Task[None] | None = None

    @property
    def begun_step(self) -> int:
        """Step that begins next, where samples enter."""
        return self._computing.begun_step

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The steps that are under way here."""
        return self._steps.in_flight

    @property
    def waiting(self) -> dict[str, int]:
        """Counts of waiting work: steps for this worker's turn to compute them, and items for the links to others."""
        return {"compute": self._steps.waiting, "send": sum(link.waiting for link in self.links.values())}

    @property
    def oldest_step(self) -> int:
        """The first step that not every worker has done, as far as it is known here."""
        return min(self.next_step, self._heard.oldest(self.next_step))

    @property
    def has_failed(self) -> bool:
        """Tell whether a step failed half-way here, so that the state in memory cannot be continued."""
        task = self._task
        return task is not None and task.done() and not task.cancelled()

    @property
    def batches_in_flight(self) -> int:
        """Number of batches, where samples enter, that have begun and that hold up others; K + 1 at most, where K
        bounds anything."""
        return self.begun_step - self._oldest(self.begun_step)

    def may_be_at(self, step: int) -> bool:
        """Tell whether the others can begin this step next. A worker without a part in a step is at any that they say."""
        return is_step(step) and (step == self.next_step or (self._is_idle and step > self.next_step))

    def catch_up(self, step: int) -> None:
        """The others begin this step next, at which this worker may be. Raises StorageError where its log cannot be written."""
        if step > self.next_step:
            self._record.pass_over(self.next_step, step)
            self.next_step = step

    def start(self) -> None:
        """Begin to compute whatever can be computed, until `stop`."""
        self._task = self._computing.start()

    async def stop(self) -> None:
        """Compute no more. When this returns, nothing is being computed."""
        await self._computing.stop(self._task)

    async def serve(
        self, peer: str, stream: LinkStream, end_writing: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serve a stream of the link to a peer, until it is ended; see `LinkEnd.run`. Computing must have been started.

        Raises ProtocolError where there is no such link, the IsthmusError that ends the stream, and what computing fails with.
        """
        assert self._task is not None, "start comes first"
        if (end := self.links.get(peer)) is None:
            raise ProtocolError(f"there is no link between {self.worker!r} and {peer[:40]!r} under this placement")
        serving = asyncio.create_task(end.run(stream, end_writing))
        try:
            await asyncio.wait({serving, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and not self._task.cancelled():
                self._task.result()
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
        assert self._task is not None, "start comes first"
        return self._task

    def say_stopping(self) -> None:
        """Tell the agent, through whoever passes reports on, that this worker is about to stop."""
        self._note_stopping(self.worker)

    def feed(self, source: BatchSource, stop_step: int) -> None:
        """Begin batches of a source, the steps before `stop_step`, as soon as each is ready and no more than K others are
        under way. A batch that waits for that begins the moment that it may, before this worker turns to anything else."""
        self._computing.feed(source, stop_step)

    def feed_no_more(self) -> int:
        """Begin no batch any more, until the next `feed`; returns the step that would be the next."""
        return self._computing.feed_no_more()

    def note_ready(self) -> None:
        """The source has a batch that it had not. Called on any thread."""
        self._computing.note_ready()

    def _may_begin(self, step: int) -> bool:
        # Who says nothing for so long is not followed any further, even where nobody waits for what he says.
        return step - self._oldest(step) <= self._ahead and step - self._heard.oldest(step) < MOST_UNREPORTED

    def _oldest(self, step: int) -> int:
        """The oldest step that is under way where `step` begins next, as far as that has to wait for it."""
        oldest = min(self._steps.oldest(step), step)
        return min(oldest, self._heard.oldest(oldest)) if self._is_unaware else oldest

    def _hear(self, news: Begun | Computed) -> None:
        if isinstance(news, Begun):
            self._post(news.outgoing)
            if news.ends_step:  # it only has the samples
                self._end_step(news.step, None, 0)
            return
        self._order.note(news.segment)
        seconds = news.ended_seconds - news.started_seconds
        self._costs.setdefault(news.step, _Cost(news.started_seconds)).seconds += seconds
        self._listener.computed(news.step, news.what, news.started_seconds, news.ended_seconds)
        self._post(news.outgoing)
        if news.answers:
            self._arrivals.answered(news.step)
        if news.ends_step:
            self._end_step(news.step, news.loss, news.staleness)

    def _post(self, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            self.links[one.crossing.receiver].send(one)

    def _end_step(self, step: int, loss: BatchLoss | None, staleness: int) -> None:
        self.next_step = step + 1
        self._listener.step_ended(step, staleness)
        done = StepDone(worker=self.worker, step=step, no_gradient=self._blocks.passes_no_gradient)
        done.order.extend(self._order.take())
        if (cost := self._costs.pop(step, None)) is not None:
            done.compute_seconds = cost.seconds
            done.compute_start_nanoseconds = int(cost.started_seconds * 1e9)
        if loss is not None:
            done.loss, done.samples = loss.loss, loss.samples
            if loss.correct is not None:
                done.correct = loss.correct
        for peer, link in self.links.items():
            if (rate := link.bits_per_second) is not None:
                done.rates.add(to=peer, bits_per_second=rate)
        self._listener.step_done(done)
        self._pass_on(done, self.worker)

    def _hear_done(self, done: StepDone, peer: str) -> None:
        """A peer says that a worker has done a step. Raises ProtocolError for what cannot be."""
        if self._heard.take(done, peer, self.begun_step):
            self._listener.step_done(done)
            self._pass_on(done, peer)
        self._computing.wake()

    def _pass_on(self, done: StepDone, source: str) -> None:
        """Tell those that hear it by this worker, and those that nothing else shows how far this worker is.

        source: the peer that it came from, or this worker. Loss and other figures go on the way to the first worker alone: they
        tell of labels and outputs, and whoever only counts steps may have neither.
        """
        bare = StepDone(worker=done.worker, step=done.step)
        for peer, link in self.links.items():
            shows_nothing = source == self.worker and not link.has_leaving
            if done.worker in self._told[peer] or shows_nothing:
                link.report(done if link is self._parent else bare, more_comes=not self._steps.are_over)

    def _hear_stopping(self, worker: str, peer: str) -> None:
        """A peer says that a worker is about to stop. Raises ProtocolError for one that others speak for."""
        if not self._heard.speaks_for(peer, worker):
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
