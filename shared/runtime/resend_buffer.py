"""Items that were made for the peer, by step: those that wait to be sent, and those that may have to be sent again.

Each side keeps its sent items until the peer is known to have them. On the next stream the peer tells its position.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class ResendBuffer(Generic[T]):
    """Items in the order of their steps. Used by one thread at a time."""

    def __init__(self, first_step: int = 0, limit: int | None = None) -> None:
        """limit: how many of the newest steps are kept; None where `forget_before` alone bounds them."""
        self._items: dict[int, T] = {}
        self._limit = limit
        self.next_step = first_step
        """Step after the last one whose item was kept."""
        self.sent_step = first_step
        """First step whose item is not sent."""

    def __getitem__(self, step: int) -> T:
        """Return the item of a step that is here."""
        return self._items[step]

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps whose items are here, in order."""
        return tuple(self._items)

    @property
    def waiting(self) -> int:
        """Count the items that are not sent."""
        return max(self.next_step - self.sent_step, 0)

    def keep(self, step: int, item: T) -> None:
        """Keep an item of a step that is later than all kept ones."""
        self._items[step] = item
        self.next_step = step + 1
        if self._limit is not None:
            self._items.pop(step - self._limit, None)

    def forget_before(self, before: int) -> None:
        """Forget the items of every step before this one, because the peer has them."""
        while self._items and (oldest := next(iter(self._items))) < before:
            del self._items[oldest]

    def covers(self, first: int) -> bool:
        """Tell whether all items from this step on are here, so that a peer that waits for it can be brought to the end.

        Return False for a step that is beyond the next one.
        """
        lacking = self.next_step - first
        return 0 <= lacking <= len(self._items) and all(step in self._items for step in range(first, self.next_step))

    def first_unsent(self) -> T | None:
        """Return the oldest item that is not sent; None if all are."""
        if self.sent_step >= self.next_step:
            return None
        if (item := self._items.get(self.sent_step)) is not None:
            return item
        return next((item for step, item in self._items.items() if step >= self.sent_step), None)
