"""A queue with a bound, by which a thread hands its results to the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ResultQueue(Generic[T]):
    """The items on their way. One thread puts them; they are taken on the event loop, in the same order.

    An item is taken once the thread announces it, or when the event loop looks: a thread that goes on by itself decides
    which items are worth waking the event loop for.
    """

    def __init__(self, take: Callable[[T], None], most: int) -> None:
        """take: called on the event loop with each item. most: how many may wait; the thread stops at so many."""
        self._take = take
        self._most = most
        self._items: deque[T] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._is_announced = False
        """True while the event loop was told that items wait, and has not looked yet."""
        self.failure: Exception | None = None
        """Error that `take` has raised after an announcement."""
        self._is_closed = False

    def open(self) -> None:
        """Have the running event loop take the items."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Take nothing more, and let go of `take`, whose owner may have the queue. On the event loop."""
        self._is_closed = True
        self._take = _drop

    @property
    def must_stop(self) -> bool:
        """Tell whether the thread has to stop, because the queue is stopped or full. On any thread."""
        return self._is_closed or self.failure is not None or len(self._items) >= self._most

    @property
    def is_full(self) -> bool:
        """Tell whether the thread has to stop until the event loop has looked. On any thread."""
        return len(self._items) >= self._most

    def put(self, item: T) -> None:
        """Add an item where there is room. On the thread."""
        assert len(self._items) < self._most, f"no more than {self._most} items wait"
        self._items.append(item)

    def announce(self) -> None:
        """Have the event loop take the waiting items, while the thread continues. On the thread."""
        if self._items and not self._is_announced:
            self._is_announced = True
            self._loop.call_soon_threadsafe(self._take_announced)

    def take_all(self) -> None:
        """Take the waiting items. On the event loop."""
        self._is_announced = False  # first: later items are announced again
        while self._items and not self._is_closed and self.failure is None:
            self._take(self._items.popleft())

    def _take_announced(self) -> None:
        try:
            self.take_all()
        except Exception as failure:
            self.failure = failure


def _drop(_item: object) -> None:
    pass
