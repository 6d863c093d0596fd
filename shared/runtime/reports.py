"""Reports of steps that are done, on their way to the peer of a link: kept until it has them, sent with what else goes."""

from collections.abc import Callable

from shared.runtime.resend_buffer import ResendBuffer
from shared.transport.stream.reminder import Reminder
from shared.wire.isthmus.v1.link_pb2 import StepDone

MOST_KEPT = 1024
"""Reports that are kept to be sent again: many more than can be under way, and small."""
MOST_TAKEN = 16
"""Reports that go in one message; with the frames they stay below what a reader takes."""
DELAY_SECONDS, MORE_COMES_SECONDS = 0.02, 0.2
"""Longest waits of a report for a message that can carry it, where no batch waits for it: the first if nothing else is
under way here, the second if something is, which will have to be sent."""


class Reports:
    """Used on the event loop."""

    def __init__(self, on_due: Callable[[], None], *, may_wait: bool) -> None:
        """on_due: told when reports are to go, even alone. may_wait: whether no batch begins only when it is heard what others
        have done."""
        self._kept: ResendBuffer[StepDone] = ResendBuffer(MOST_KEPT)
        self._count = self._sent = 0
        self._on_due = on_due
        self._may_wait = may_wait
        self._is_hurried = False
        self._soon = Reminder(DELAY_SECONDS, self._remind)
        self._late = Reminder(MORE_COMES_SECONDS, self._remind)

    def add(self, done: StepDone, *, more_comes: bool) -> None:
        """One more has to go. more_comes: whether other steps are under way here."""
        self._kept.keep(self._count, done)
        self._count += 1
        if self._may_wait:
            (self._late if more_comes else self._soon).begin()
        else:
            self._remind()

    def hurry(self) -> None:
        """Make the reports that are there due now, even alone."""
        self._is_hurried = True

    @property
    def are_due(self) -> bool:
        """Tell whether any reports are to be sent now, even alone."""
        return self._is_hurried and self._sent < self._count

    def take(self) -> list[StepDone]:
        """Take the reports that go with the next message."""
        if self._sent == self._count:
            return []
        stop = min(self._count, self._sent + MOST_TAKEN)
        taken = [self._kept[number] for number in range(self._sent, stop)]
        self._sent = stop
        if stop == self._count:
            self._is_hurried = False
            self._soon.end()
            self._late.end()
        return taken

    def covers(self, received: int) -> bool:
        """Tell whether a peer that has received this number of reports can be brought to all there are."""
        return self._kept.covers(received, self._count)

    def resume(self, received: int) -> None:
        """A stream begins, whose other end has received so many."""
        self._sent = received
        self._kept.forget_before(received)
        self.hurry()

    def _remind(self) -> None:
        self.hurry()
        self._on_due()
