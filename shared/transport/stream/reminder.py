"""Says when something has waited for too long that usually goes with something else, and costs little where it does."""

import asyncio
from collections.abc import Callable
from weakref import WeakMethod


class Reminder:
    """Calls back once something has waited for so long. Used on the event loop.

    A timer is not taken back when nothing waits any more: it looks again when it is due. So at most one timer is set for each
    time that it takes, however many things have waited and gone meanwhile.
    """

    def __init__(self, seconds: float, remind: Callable[[], None]) -> None:
        """remind: a method of the owner, who can go while it is held here."""
        self._seconds = seconds
        self._remind = WeakMethod(remind)
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Something waits from now on, if nothing has waited before."""
        if self._since is None:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            if self._timer is None:
                self._timer = loop.call_at(self._since + self._seconds, self._look)

    def end(self) -> None:
        """Nothing waits any more."""
        self._since = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        loop, due = asyncio.get_running_loop(), self._since + self._seconds
        if loop.time() < due:
            self._timer = loop.call_at(due, self._look)
        else:
            self._since = None
            if (remind := self._remind()) is not None:
                remind()
