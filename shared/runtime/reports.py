"""Reports of finished steps, on their way to the peer of a link: kept until it has them, sent with other messages."""

import asyncio
from collections import deque
from itertools import islice

from shared.transport.stream.reminder import Reminder
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, StepDone

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
