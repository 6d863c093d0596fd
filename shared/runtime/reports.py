"""The reports of steps that are done: judged as they come to a worker, told as events, and passed on to its peers.

A report must be about the next step of its worker, which must have begun. Its figures must be possible for that worker
under the placement. A loss may also be NaN or infinite, because a divergence shows so. What goes to a peer is kept until the
peer has it, and sent with other messages.
"""

import asyncio
from collections import deque
from itertools import islice

from shared.bounds import MOST_CLOCK_NANOSECONDS, MOST_METRIC_STATE_BYTES, is_duration, is_rate
from shared.errors import ProtocolError
from shared.events import Emit
from shared.events.worker import WorkerDone, WorkerRepeated, WorkerStops
from shared.placement import Window
from shared.transport.stream.reminder import Reminder
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, StepDone

MOST_REPORT_BYTES = 4096
"""The largest report of training: that of a worker with fifteen links takes a third of it."""
MOST_KEPT = 1024
"""Reports that are kept to be sent again: many more than can be under way, and small."""
MOST_TAKEN = 16
"""Number of reports in one message. With the frames they stay below a reader's limit."""
DELAY_SECONDS, MORE_COMES_SECONDS = 0.02, 0.2
"""Longest waits of a report for a message that can carry it, where no batch waits for it: the first if nothing else is
under way here, the second if something is, which will have to be sent."""


class Reports:
    """The queue to one peer: `MOST_KEPT` reports at most, and workers that are about to stop. Used on the event loop."""

    def __init__(self, *, may_wait: bool, follows: bool = False) -> None:
        """may_wait: True if no worker begins a batch only when it has heard of the others.

        follows: True if the reports follow on those of a life of this worker that is over, of which the peer knows the number.
        """
        self.due = asyncio.Event()
        """Event that is set when a report must go, even alone. The sender clears it."""
        self._kept: deque[StepDone] = deque(maxlen=MOST_KEPT)
        """The newest reports, which may have to be sent again."""
        self._made = 0
        """Number of reports that there were."""
        self._sent = 0
        """Number of these that are sent."""
        self._stopping: list[str] = []
        """Workers that are about to stop."""
        self._stopping_sent = 0
        """Number of these that the peer has been told of on this stream."""
        self._may_wait = may_wait
        self._follows = follows
        self._is_hurried = False
        self._soon = Reminder(DELAY_SECONDS, self.hurry)
        self._late = Reminder(MORE_COMES_SECONDS, self.hurry)

    def add(self, done: StepDone, *, more_comes: bool) -> None:
        """One more has to go. more_comes: whether other steps are under way here."""
        self._kept.append(done)
        self._made += 1
        if self._may_wait:
            (self._late if more_comes else self._soon).begin()
        else:
            self.hurry()

    def tell_stopping(self, worker: str) -> None:
        """Tell the peer, and every new stream's again, that a worker is about to stop."""
        self._stopping.append(worker)
        self.due.set()

    def hurry(self) -> None:
        """Make the reports that are there due now, even alone."""
        self._is_hurried = True
        self.due.set()

    @property
    def are_due(self) -> bool:
        """Tell whether anything is to be sent now, even alone."""
        return self._stopping_sent < len(self._stopping) or (self._is_hurried and self._sent < self._made)

    def take(self) -> LinkMessage:
        """Make a message of the reports that go with the next items, or alone."""
        message = LinkMessage()
        if self._stopping_sent < len(self._stopping):
            message.stopping.worker = self._stopping[self._stopping_sent]
            self._stopping_sent += 1
        if waiting := self._made - self._sent:
            first = len(self._kept) - waiting
            message.dones.extend(islice(self._kept, first, first + MOST_TAKEN))
            self._sent = min(self._made, self._sent + MOST_TAKEN)
            if self._sent == self._made:
                self._is_hurried = False
                self._soon.end()
                self._late.end()
        return message

    def covers(self, received: int, *, is_new: bool = False) -> bool:
        """Tell whether a peer that has received this number of reports can be brought to all there are.

        is_new: True for one that has lost all: it hears the reports from here on, and counts them from 0.
        """
        return self._follows or (received == 0 if is_new else 0 <= self._made - received <= len(self._kept))

    def resume(self, received: int, *, is_new: bool = False) -> None:
        """A stream begins, whose other end has received so many. is_new: see `covers`."""
        if is_new:
            self._kept.clear()
            self._made = 0
        if self._follows:
            self._made, self._follows = received + len(self._kept), False
        self._sent = received
        self._stopping_sent = 0
        while len(self._kept) > self._made - received:
            self._kept.popleft()
        self.hurry()


class ReportRelay:
    """The reports of one worker and of those that report by it. Made on any thread, and used on the event loop."""

    def __init__(self, window: Window, emit: Emit, changed: asyncio.Event) -> None:
        """window: of this worker. It counts the reports that are passed on.

        changed: set when a report has come, after which more may begin.
        """
        plan, worker, placement = window.plan, window.worker, window.plan.placement
        self._window = window
        self._emit = emit
        self._changed = changed
        # Reports wait for other messages, unless some worker begins a batch only when it has heard of the others.
        may_wait = not plan.unaware and worker not in plan.stateless
        self.queues = {peer: Reports(may_wait=may_wait, follows=window.life > 0) for peer in plan.peers(worker)}
        """The reports that go to each peer."""
        self._told = {peer: plan.reports_heard(peer).get(worker, frozenset()) for peer in self.queues}
        """By peer, the workers whose reports this one brings there."""
        self._unshown = frozenset(peer for peer in self.queues if not plan.between(worker, peer))
        """The peers to which nothing goes in a step that shows how far this worker is."""
        self._parent = self.queues.get(plan.report_parent(worker) or "")
        self._stopping: set[str] = set()
        """The workers that are about to stop."""
        self._heard = plan.reports_heard(worker)
        """By peer, the workers whose reports come from there."""
        self._shown = dict.fromkeys(self.queues, window.told)
        """First step that a peer has not shown to be done. Its reports may come by another peer, too."""
        self._repeating = dict.fromkeys(plan.stateless, window.told)
        """First step that was not reported in any life of a worker, by each that may begin again."""
        self._most_bytes = MOST_REPORT_BYTES + (0 if plan.training else MOST_METRIC_STATE_BYTES)
        self._samples = {tile.worker: tile.rows.count for tile in placement.holders(placement.blocks - 1)}
        """The most samples whose loss each worker can compute; none where it is not named."""
        self._linked = {name: frozenset(plan.peers(name)) for names in self._heard.values() for name in names}
        self._most_in_a_row = plan.most_under_way
        """Largest number of times in a row that one segment can be computed before a step is done."""

    def tell(self, done: StepDone) -> None:
        """Report a step of this worker."""
        self._window.tell(done.step)
        self._emit(WorkerDone(done))
        self._pass_on(done, self._unshown)

    def hear(self, done: StepDone, peer: str) -> None:
        """Count a peer's report about a worker. Raises ProtocolError, and counts nothing, for an impossible one."""
        worker, step = done.worker, done.step
        if self._is_passed_on(done, peer):
            self._check(done, peer)
            self._window.hear(worker, step)
            if step < self._repeating.get(worker, 0):
                self._emit(WorkerRepeated(worker, step))
            else:
                if worker in self._repeating:
                    self._repeating[worker] = step + 1
                self._emit(WorkerDone(done))
                self._pass_on(done, frozenset())
        self._changed.set()

    def tell_stopping(self, worker: str) -> None:
        """Pass on towards the agent that a worker is about to stop, once."""
        if worker in self._stopping:
            return
        self._stopping.add(worker)
        self._emit(WorkerStops(worker))
        if self._parent is not None:
            self._parent.tell_stopping(worker)

    def hear_stopping(self, worker: str, peer: str) -> None:
        """Hear from a peer that a worker is about to stop. Raises ProtocolError for one that others speak for."""
        if worker not in self._heard.get(peer, ()):
            raise ProtocolError(f"{peer!r} says that {worker[:40]!r} is about to stop; others pass that on")
        self.tell_stopping(worker)

    def _pass_on(self, done: StepDone, unshown: frozenset[str]) -> None:
        """Tell those that hear it by this worker, and `unshown`.

        Loss and other figures go towards the first worker alone. They reveal labels and outputs, which a worker that
        only counts steps may not have.
        """
        bare = StepDone(worker=done.worker, step=done.step)
        for peer, queue in self.queues.items():
            if done.worker in self._told[peer] or peer in unshown:
                queue.add(done if queue is self._parent else bare, more_comes=bool(self._window.under_way))

    def _is_passed_on(self, done: StepDone, peer: str) -> bool:
        """Tell whether a report is to be passed on. One that is not shows how far its peer is, and counts as that alone.

        Raises ProtocolError for a step that cannot be the next one.
        """
        passed_on = done.worker in self._heard.get(peer, ())
        if not passed_on and done.worker != peer:
            raise ProtocolError(f"{peer!r} says what {done.worker[:40]!r} has done; others pass that on")
        expected = self._window.next_of(done.worker) if passed_on else self._shown[peer]
        begins_again = not self._window.plan.stateless.isdisjoint((peer, self._window.worker))
        if begins_again and done.step < expected:
            return False
        may_lack = begins_again and not passed_on and done.step <= self._window.latest + self._most_in_a_row
        if done.step != expected and not may_lack:
            raise ProtocolError(
                f"{peer!r} says that {done.worker!r} has done step {done.step}; of it, step {expected} is next"
            )
        if not self._window.may_be_done_elsewhere(done.step):
            raise ProtocolError(f"{peer!r} says that {done.worker!r} has done step {done.step}, which has not begun")
        if not passed_on:
            self._shown[peer] = done.step + 1
        return passed_on

    def _check(self, done: StepDone, peer: str) -> None:
        """Refuse figures that the worker cannot have. Raises ProtocolError."""
        most, linked = self._samples.get(done.worker, 0), self._linked[done.worker]
        if done.ByteSize() > self._most_bytes:
            wrong = f"{done.ByteSize()} bytes; a report has {self._most_bytes} at most"
        elif done.samples > most:
            wrong = f"the loss of {done.samples} samples; it has {most} at most"
        elif done.correct > done.samples:
            wrong = f"{done.correct} samples that are right of {done.samples}"
        elif not is_duration(done.compute_seconds):
            wrong = f"{done.compute_seconds} seconds of computing"
        elif done.compute_start_nanoseconds > MOST_CLOCK_NANOSECONDS:
            wrong = f"a clock at {done.compute_start_nanoseconds} nanoseconds"
        elif len(done.rates) > len(linked) or not all(
            rate.to in linked and is_rate(rate.bits_per_second) and is_duration(rate.round_trip_seconds)
            for rate in done.rates
        ):
            wrong = "figures of links that it has not, or that no link has"
        elif len(done.order) % 2 or not all(1 <= count <= self._most_in_a_row for count in done.order[1::2]):
            wrong = "an order in which nobody computes"
        else:
            return
        raise ProtocolError(f"{peer!r} reports of step {done.step} at {done.worker!r}: {wrong}")
