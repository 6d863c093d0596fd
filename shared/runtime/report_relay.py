"""The reports of steps that are done: judged as they come to a worker, told as events, and passed on to its peers."""

import asyncio

from shared.errors import ProtocolError
from shared.events import Emit
from shared.events.worker import WorkerDone, WorkerRepeated, WorkerStops
from shared.placement import Window
from shared.runtime.reports import Reports
from shared.runtime.reports_heard import Heard, ReportsHeard
from shared.wire.isthmus.v1.link_pb2 import StepDone


class ReportRelay:
    """The reports of one worker and of those that report by it. Made on any thread, and used on the event loop."""

    def __init__(self, window: Window, emit: Emit, changed: asyncio.Event) -> None:
        """changed: set when a report has come, after which more may begin."""
        plan, worker = window.plan, window.worker
        self._window = window
        self._emit = emit
        self._changed = changed
        self._heard = ReportsHeard(window)
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

    def tell(self, done: StepDone) -> None:
        """Report a step of this worker."""
        self._window.tell(done.step)
        self._emit(WorkerDone(done))
        self._pass_on(done, self._unshown)

    def hear(self, done: StepDone, peer: str) -> None:
        """Count a peer's report about a worker. Raises ProtocolError for an impossible one."""
        match self._heard.take(done, peer):
            case Heard.NEW:
                self._emit(WorkerDone(done))
                self._pass_on(done, frozenset())
            case Heard.REPEATED:
                self._emit(WorkerRepeated(done.worker, done.step))
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
        if not self._heard.speaks_for(peer, worker):
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
