"""The steps under way at one worker: the progress of each in the worker's program, and the next work.

A program falls into segments: arrivals, their computation in one go, and sends. Each segment does its steps in their
order, so the order of segments and steps decides every bit. `SegmentRunner` computes them. Knows nothing of threads and
links: its caller brings arrivals, runs one piece of work at a time, and sends the results.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from shared.errors import DataError
from shared.execution.blocks import PlacedBlocks
from shared.execution.planned_segments import PlannedSegment, placed, planned, used_up
from shared.execution.segment_runner import SegmentRunner
from shared.execution.step_in_flight import Parcel, StepInFlight
from shared.execution.step_tensors import StepTensors
from shared.model.features import Features, Slots
from shared.placement import (
    Order,
    Send,
    Window,
    answering_segment,
    segments,
)
from shared.training.losses import BatchLoss


class Work(NamedTuple):
    """One segment of one step."""

    step: int
    segment: int
    what: str
    """Name of the work, in words: "forward", or "backward, update"."""
    ends_step: bool
    """True if this worker has no more to do for the step then."""


class StepScheduler:
    """The steps under way at one worker under one placement. Belongs to one thread, except for members that are said to
    be fixed."""

    def __init__(self, window: Window, blocks: PlacedBlocks) -> None:
        """window: counts the steps.

        Its plan is of an evaluation to judge batches, one after the other, and to change nothing.
        """
        plan, worker = window.plan, window.worker
        placement = plan.placement
        self.worker = worker
        """Fixed, as `window`, `device`, `sends`, `receives`, `needed_by` and `needs`."""
        self._window = window
        self._blocks = blocks
        operations = plan.program(worker)
        self._source = next((source.rows for source in placement.sources if source.worker == worker), None)
        sent_first, rest = segments(operations)
        sends = [one.crossing for one in sent_first if isinstance(one, Send)]
        places = itertools.count()
        self._sent_ahead = placed((one for one in sends if one in plan.sent_ahead), places)
        self._sent_first = placed((one for one in sends if one not in plan.sent_ahead), places)
        self._segments = planned(rest, plan.model, places)
        of_segments = (one for segment in self._segments for one in segment.sends)
        self.sends = tuple(crossing for crossing, _ in (*self._sent_ahead, *self._sent_first, *of_segments))
        """All that this worker sends in a step, each at its place."""
        self.receives = tuple(crossing for segment in self._segments for crossing in segment.receives)
        """All that it receives in a step, each at its place."""
        self.needed_by = [number for number, segment in enumerate(self._segments) for _ in segment.receives]
        """The segment that needs what is received, by its place."""
        self._begins = [self._source is None and one not in plan.sent_ahead for one in self.receives]
        """True if a step begins with what is received, by its place: where no samples enter, and beside samples ahead."""
        self._first_segments = [
            number for number, segment in enumerate(self._segments) if not segment.after and not segment.receives
        ]
        self.needs = [len(segment.receives) for segment in self._segments]
        """Number of loads that come to this worker in every step, by the segment that needs them."""
        self._next_segments = _followers(self._segments)
        """The segments that may be next when one is done."""
        self._used_up = used_up(rest, plan.model)
        order = Order.of(rest)
        self._answering = frozenset((answering_segment(rest), *order.apart))
        """The segments after which another step may come here."""
        self._clearing = frozenset(plan.waited.get(worker) or order.ends)
        """The segments after which another step may begin here, in place of this one."""
        self._own_scale = blocks.held.loss_scale if plan.scaling_worker == worker else None
        """Scale of the loss, where this worker tells it to the others; it follows from the updates before step t - K,
        and from all of earlier placements, so that no order of work decides it."""
        self._runner = SegmentRunner(plan, blocks, self._own_scale)
        self._steps: dict[int, StepInFlight] = {}
        self._first = window.first
        if window.done < window.first:
            self._await_weights(window.done, placement.batch_size, order)
        self._last_segment: int | None = None
        """Segment that was computed last, of any step."""

    @property
    def window(self) -> Window:
        """Count of the steps that are under way here."""
        return self._window

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self._blocks.held.device

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The steps that have begun here or for which something has come, and that are not done, in their order."""
        return tuple(self._steps)

    def feed(
        self,
        step: int,
        samples: int,
        inputs: Slots,
        labels: Features,
        numbers: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> list[Parcel]:
        """Take this worker's samples of a batch, which begins later. Returns the sends that may go before it begins.

        samples: of the whole batch. inputs, labels: the rows of this worker's source. Where features are recalled, these are of
        the samples whose feature was not sent, and numbers are those of all samples. counts: of the labels of the batch, where
        the loss goes by them. Raises DataError for labels of another number of tensors than in the first batch.
        """
        assert self._source is not None, "batches begin where samples are"
        if len(labels) != (expected := self._window.plan.model.label_tensors):
            raise DataError(
                f"the labels of a batch are {len(labels)} tensors, and those of the first batch of data.train {expected}; all "
                "batches must be alike"
            )
        self._window.feed(step)
        state = self._state(step, samples)
        # Again, because what the trainer sends of a step may be here before its samples.
        state.samples, state.numbers, state.counts = samples, numbers, counts
        state.rate_drops = self._blocks.held.rate_drops
        if counts is not None and self._window.plan.model.merged:
            # What counts for nothing at this member may count at others: its gradient is 0.
            state.label_count, state.counts = float(counts[0]), counts if counts[1] else torch.ones_like(counts)
        state.batch_samples = samples if numbers is None else len(numbers)
        self._runner.add_samples(state, self._source, inputs, labels)
        return self._runner.sent(state, self._sent_ahead)

    def begin(self, step: int) -> list[Parcel]:
        """Begin a batch whose samples are here. Returns the other sends that need no computation."""
        self._window.begin(step)
        state = self._steps[step]
        state.has_begun = True
        if (loss_scale := self._own_scale) is not None:
            first = self._blocks.held.recipe.first_of_update(step)
            state.scale = loss_scale.before(max(first - self._window.ahead, self._window.first))
        outgoing = self._runner.sent(state, self._sent_first) if self._sent_first else []
        if not self._segments:  # it has samples and nothing to compute
            self._end(step)
        return outgoing

    def deliver(self, parcel: Parcel) -> None:
        """Something has come, decoded, which has a place here."""
        state, number = self._state(parcel.step, parcel.samples), self.needed_by[parcel.place]
        if parcel.rate_drops > state.rate_drops:
            state.rate_drops = parcel.rate_drops
            if self._window.plan.model.merged:  # the evaluations of another member say so
                self._blocks.held.rate_drops = max(self._blocks.held.rate_drops, parcel.rate_drops)
        state.label_count = state.label_count or parcel.label_count
        state.arrived.setdefault(number, {})[parcel.place] = parcel
        if self._is_prepared(state, number):
            state.next_segments.append(number)
        if self._begins[parcel.place] and parcel.step >= self._window.begun:
            self._window.begin(parcel.step)

    def deliver_sent(self, parcel: Parcel) -> None:
        """Deliver what another worker of this process has sent, or the group: it has no place here yet."""
        parcel.place = self.receives.index(parcel.crossing)
        self.deliver(parcel)

    def next_work(self) -> Work | None:
        """Choose the next work, if there is any: first what the exchange of shared blocks waits for; then work that receives
        nothing, as an update; then another segment than the last.

        Of several steps it takes the newest. So sends up and down take turns, and neither links nor other workers stand
        still. Oldest first, the batches gather at the slowest worker, and chains whose middle is slow take up to a
        third longer; newest first alone, up to a seventh. An update that is put off holds up the batch that begins after it.
        """
        chosen: tuple[StepInFlight, int] | None = None
        rank = (0, False, False)
        for state in self._steps.values():
            if not state.has_begun:
                continue
            for number in state.next_segments:
                if self._may_run(state, number):
                    segment = self._segments[number]
                    ranked = (segment.urgency, not segment.receives, number != self._last_segment)
                    if chosen is None or ranked >= rank:
                        chosen, rank = (state, number), ranked
        return None if chosen is None else self._work(*chosen)

    def work_of(self, step: int) -> list[Work]:
        """The segments of a step that can be next, if the step is under way and all is there that they need."""
        if (state := self._steps.get(step)) is None or not state.has_begun:
            return []
        return [self._work(state, number) for number in state.next_segments if self._may_run(state, number)]

    def _work(self, state: StepInFlight, number: int) -> Work:
        segment = self._segments[number]
        ends_step = state.step >= self._first and len(state.done) + 1 == len(self._segments)
        return Work(state.step, number, segment.name, ends_step)

    def run(self, work: Work) -> list[Parcel]:
        """Compute a piece of work, on any thread, while nothing else of this worker is run. Returns its sends."""
        if self._source is None and work.step >= self._window.begun:
            self._window.begin(work.step)
        state = self._steps[work.step]
        return self._runner.run(state, self._segments[work.segment], state.arrived.pop(work.segment, {}))

    def finish(self, work: Work) -> BatchLoss | None:
        """A piece of work has been run. Returns the loss of this worker's part, once it is computed."""
        state = self._steps[work.step]
        state.done.add(work.segment)
        state.next_segments.remove(work.segment)
        for number in self._next_segments[work.segment]:
            if self._is_prepared(state, number):
                state.next_segments.append(number)
        state.tensors.forget(*self._used_up[work.segment])
        self._last_segment = work.segment
        if work.segment in self._answering and self._answering <= state.done:
            self._window.answer(work.step)
        if work.segment in self._clearing and self._clearing <= state.done:
            self._window.clear(work.step)
        if len(state.done) == len(self._segments):
            self._end(work.step)
        return state.loss

    def _await_weights(self, step: int, samples: int, order: Order) -> None:
        """Have the weights of a step still to come, which another life of this worker has done; nobody hears of its end."""
        pulls = set(order.pulls)
        done = set(range(len(self._segments))) - pulls
        tensors = StepTensors(self._window.plan.model)
        self._steps[step] = StepInFlight(step, samples, samples, True, [], tensors, done)

    def _end(self, step: int) -> None:
        del self._steps[step]
        self._window.end(step)

    def _state(self, step: int, samples: int) -> StepInFlight:
        if (state := self._steps.get(step)) is None:
            tensors, next_segments = StepTensors(self._window.plan.model), list(self._first_segments)
            state = self._steps[step] = StepInFlight(
                step, samples, samples, self._source is None, next_segments, tensors
            )
        return state

    def _is_prepared(self, state: StepInFlight, number: int) -> bool:
        """Tell whether all that a segment receives is there, and the segments before it are done."""
        segment = self._segments[number]
        return len(state.arrived.get(number, ())) == len(segment.receives) and state.done.issuperset(segment.after)

    def _may_run(self, state: StepInFlight, number: int) -> bool:
        """Tell whether other steps let a segment run, of a step that has begun and for which all is there."""
        window, behind = self._window, self._segments[number].behind
        if state.step > window.done and number not in self._steps[state.step - 1].done:
            return False  # each segment does its steps in their order
        if not behind:
            return True
        # The weights of now must be those that a forward of this step may use, or newer ones.
        before = max(state.step - window.ahead - 1, self._first - 1)
        return self._steps[before].done.issuperset(behind) if before == window.done else before < window.done


def _followers(whole: tuple[PlannedSegment, ...]) -> list[list[int]]:
    """By segment, those that wait for it among others."""
    followers: list[list[int]] = [[] for _ in whole]
    for number, segment in enumerate(whole):
        for before in segment.after:
            followers[before].append(number)
    return followers
