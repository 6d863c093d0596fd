"""One worker's part in a session under one placement: its steps computed one piece after the other, its links served."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from shared.bounds import is_step
from shared.concurrency.threads import Runner, finish_calls
from shared.errors import ProtocolError
from shared.events import Emit
from shared.events import worker as events
from shared.execution.blocks import PlacedBlocks
from shared.execution.feedback import Feedback
from shared.execution.shared_blocks import BlockPart, CodedWeights
from shared.execution.step_in_flight import Parcel
from shared.execution.step_scheduler import StepScheduler
from shared.placement import GROUP, ArrivalJudge, Backward, BlockSlice, Cargo, Crossing, Window, from_group
from shared.runtime.channel import Channel
from shared.runtime.compute_loop import MOST_UNTAKEN, BatchSource, ComputeLoop, Departing, Results, SegmentDone
from shared.runtime.forms import Forms
from shared.runtime.link_end import LinkEnd, LinkStream
from shared.runtime.load_queue import LoadQueue
from shared.runtime.order import ComputedOrder
from shared.runtime.reports import ReportRelay
from shared.runtime.step_record import StepRecord
from shared.training.losses import BatchLoss
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.link_pb2 import StepDone


class Threads(NamedTuple):
    """The threads of a worker: one to compute, one to encode and decode."""

    compute: Runner
    codecs: Runner


class PlacementExecutor:
    """Steps of one worker from the first to the last that is begun. Made on any thread, and used on the event loop.

    Making it takes time that grows with the crossings at this worker in a step.
    """

    def __init__(
        self,
        window: Window,
        forms: Forms,
        blocks: PlacedBlocks,
        threads: Threads,
        emit: Emit,
        step_log: StepLog | None = None,
        give: Callable[[Parcel], object] | None = None,
    ) -> None:
        """window: of this worker, with nothing under way. step_log: gets every step that is done here, with its arrivals.

        give: takes the gradients of this worker's blocks for a group, which answers by `take_merged`; None outside a group.
        """
        plan, worker = window.plan, window.worker
        self.worker = worker
        self.window = window
        """Counts of the steps that are under way here."""
        self._blocks = blocks
        self._codecs = threads.codecs
        self._emit = emit
        self._give = give
        self._learns = any(isinstance(one, Backward) for one in plan.program(worker))
        self._record = None if step_log is None else StepRecord(step_log)
        self._is_idle = not plan.program(worker)
        scheduler, changed = StepScheduler(window, blocks), asyncio.Event()
        self._loads = LoadQueue(scheduler.needs, scheduler.needed_by, changed)
        results = Results(self._take_result, MOST_UNTAKEN)
        self._compute_loop = ComputeLoop(scheduler, self._loads, results, self._record, threads.compute, changed)
        batches = blocks.held.recipe.accumulate_batches
        judge = ArrivalJudge(window)
        self._relay = relay = ReportRelay(window, emit, changed)
        self.ends: dict[str, LinkEnd] = {}
        """By the worker at the other end."""
        places = {crossing: place for place, crossing in enumerate(scheduler.receives)}
        ways: dict[Crossing, tuple[LinkEnd, Channel]] = {}
        for peer in plan.peers(worker):
            sends, comes = plan.between(worker, peer), plan.between(peer, worker)
            feedback = Feedback(blocks.feedback, comes, plan.model.features, batches)
            leaving = [Channel(forms.of(one), judge, threads.codecs, feedback, at) for at, one in enumerate(sends)]
            coming = [Channel(forms.of(one), judge, threads.codecs, feedback, places[one]) for one in comes]
            self.ends[peer] = end = LinkEnd(peer, leaving, coming, judge, self._loads, relay, emit)
            for channel in leaving:
                ways[channel.crossing] = end, channel
                if peer in plan.stateless and channel.crossing.cargo is Cargo.WEIGHTS:
                    weights, whole = blocks.weights(channel.crossing.of_block), plan.placement.batch_size
                    end.keep_first(channel, Parcel(window.first - 1, whole, channel.crossing, weights))
        self._ways = [ways.get(one) for one in scheduler.sends]
        """By which link and channel each load leaves, by its place; None for those of the group."""
        self._merged = {one.of_block: place for one, place in places.items() if one.sender == GROUP}
        """Places of the weights of slices that come from the group."""
        self._pieces = 0
        """Pieces of work that were computed."""
        self._costs: dict[int, tuple[float, float]] = {}
        """By step, when this worker began to compute for it, by time.monotonic, and for how long it has."""
        self._order = ComputedOrder(len(scheduler.needs))
        self._task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> range:
        """Return the steps that have begun here or for which something has come, and that are not done."""
        return range(self.window.done, max(self.window.begun, self._loads.stop))

    @property
    def waiting(self) -> dict[str, int]:
        """Counts of waiting work: steps whose loads have arrived and are not computed, and items for the links to others."""
        return {"arrived": self._loads.waiting, "send": sum(end.waiting for end in self.ends.values())}

    @property
    def progress(self) -> int:
        """Return a number that changes with each piece of work, and with the bytes that links carry."""
        return self._pieces + sum(end.carried_bytes for end in self.ends.values())

    @property
    def awaited(self) -> frozenset[str]:
        """Return the workers of which something is missing for the oldest step that is not done here; GROUP for a group.

        Empty while this worker has all that it needs, or computes.
        """
        if self._compute_loop.is_computing:
            return frozenset()
        lacking = frozenset(peer for peer, end in self.ends.items() if end.lacks(self.window.done))
        return frozenset({GROUP}) if not lacking and self._give is not None else lacking

    @property
    def has_failed(self) -> bool:
        """Tell whether a step failed half-way here, so that the state in memory cannot be continued."""
        task = self._task
        return task is not None and task.done() and not task.cancelled()

    def may_be_at(self, step: int) -> bool:
        """Tell whether the others can begin this step next, with every gradient applied.

        A worker without a part in a step is at any that they say.
        """
        is_here = is_step(step) and (step == self.window.done or (self._is_idle and step > self.window.done))
        return is_here and step == self._blocks.held.recipe.boundary_from(step)

    def catch_up(self, step: int) -> None:
        """Go on with this step, at which this worker may be, with nothing under way.

        Raises StorageError where its log cannot be written.
        """
        if step > self.window.done:
            if self._record is not None:
                self._record.pass_over(self.window.done, step)
            self.window.move_to(step)

    def repeat(self, worker: str) -> None:
        """Wait for a worker that has lost all to do the steps again that it may not have done; see `Window.repeated`."""
        self.window.unhear(worker, self.window.repeated)

    def start(self) -> None:
        """Begin to compute all work that is ready, until `stop`."""
        self._task = self._compute_loop.start()

    async def stop(self) -> None:
        """Compute no more, and drop what is kept for this placement alone.

        When this returns, nothing is being computed, and nothing that was being coded follows.
        """
        await self._compute_loop.stop(self._task)
        await finish_calls(self._codecs)  # or one end alone would go on from a change that is void
        self._blocks.let_go()
        for end in self.ends.values():
            end.let_go()

    async def serve(
        self, peer: str, stream: LinkStream, end_writing: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serve a stream of the link to a peer, until it is ended; see `LinkEnd.run`. Computing must have been started.

        Raises ProtocolError where there is no such link, the IsthmusError that ends the stream, and the failure of computing.
        """
        assert self._task is not None, "start comes first"
        if (end := self.ends.get(peer)) is None:
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
        for end in self.ends.values():
            end.keep()

    def end_links(self) -> None:
        """Have the links end that this worker has dialled, once nothing is under way; `serve` returns then."""
        for end in self.ends.values():
            end.end()

    @property
    def failure(self) -> "asyncio.Task[None]":
        """Return the task that ends with the failure of computing, if it fails. Computing must have been started."""
        assert self._task is not None, "start comes first"
        return self._task

    def say_stopping(self) -> None:
        """Tell the agent, through the workers that pass reports on, that this worker is about to stop."""
        self._relay.tell_stopping(self.worker)

    def take_merged(self, step: int, one: BlockSlice, weights: BlockPart | CodedWeights, rate_drops: int) -> None:
        """Bring the weights of a slice, after the update of a step, from the group that got its gradient. rate_drops: of it."""
        placement, place = self.window.plan.placement, self._merged[one]
        crossing = from_group(placement, one)
        self._loads.put(Parcel(step, placement.batch_size, crossing, weights, place, rate_drops=rate_drops))

    def fail(self, failure: Exception) -> None:
        """Compute no more, because the group refuses a gradient: `serve` raises this."""
        self._compute_loop.fail(failure)

    def read_from(self, source: BatchSource, stop_step: int) -> None:
        """See `ComputeLoop.read_from`."""
        self._compute_loop.read_from(source, stop_step)

    def read_to_boundary(self) -> int:
        """Take no batch beyond the next boundary, until the next `read_from`; returns its step, see `Recipe.boundary_from`."""
        return self._compute_loop.read_until(self._blocks.held.recipe.boundary_from)

    def read_no_more(self) -> None:
        """Take no batch any more, until the next `read_from`."""
        self._compute_loop.read_until(lambda taken: taken)

    def note_ready(self) -> None:
        """The source has a batch that it had not. Called on any thread."""
        self._compute_loop.note_ready()

    def _take_result(self, result: Departing | SegmentDone) -> None:
        if isinstance(result, Departing):
            self._send(result.outgoing)
            if result.ends_step:  # it only has the samples
                self._end_step(result.step, None, 0)
            return
        self._pieces += 1
        self._loads.note_used(result.step, result.segment)
        if result.step >= self.window.first:
            self._order.note(result.segment)
        began, ended = result.started_seconds, result.ended_seconds
        started, seconds = self._costs.get(result.step, (began, 0.0))
        self._costs[result.step] = started, seconds + (ended - began)
        self._emit(events.Computed(result.step, result.segment, result.what, began, ended, result.loss))
        if result.outgoing:
            self._send(result.outgoing)
        if result.ends_step:
            self._end_step(result.step, result.loss, result.staleness)

    def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            if (way := self._ways[parcel.place]) is not None:
                end, channel = way
                end.send(channel, parcel)
            else:
                assert self._give is not None, "only programs of a group's member have it"
                self._give(parcel)

    def _end_step(self, step: int, loss: BatchLoss | None, staleness: int) -> None:
        cost = self._costs.pop(step, None)
        seconds = 0.0 if cost is None else cost[1]
        self._emit(events.StepComputed(step, seconds, staleness if self._learns else None))
        done = StepDone(worker=self.worker, step=step, no_gradient=self._blocks.passes_no_gradient)
        for end in self.ends.values():
            done.links_lost += end.times_lost
        done.order.extend(self._order.take())
        if cost is not None:
            done.compute_seconds = seconds
            done.compute_start_nanoseconds = int(cost[0] * 1e9)
        if loss is not None:
            done.loss, done.samples = loss.loss, loss.samples
            if loss.correct is not None:
                done.correct = loss.correct
        if (judged := self._blocks.judged) is not None and judged.last_step == step:
            done.metric_values.extend(judged.values)
            done.metric_states.extend(judged.states)
        for peer, end in self.ends.items():
            if (link := end.estimate) is not None and (rate := link.rate.bits_per_second) is not None:
                done.rates.add(to=peer, bits_per_second=rate, round_trip_seconds=link.round_trip.seconds)
        self._relay.tell(done)
