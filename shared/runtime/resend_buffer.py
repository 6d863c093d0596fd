"""Items for the peer that may have to be sent again after a lost link, by step.

Each side keeps its sent items until the peer is known to have them. On the next stream the peer tells its position.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class ResendBuffer(Generic[T]):
    """Items in the order of their steps. Used by one thread at a time."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: how many of the newest steps are kept; None where `forget_before` alone bounds them."""
        self._items: dict[int, T] = {}
        self._limit = limit

    def __getitem__(self, step: int) -> T:
        """The item of a step that is here."""
        return self._items[step]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps whose items are here, in order."""
        return tuple(self._items)

    def keep(self, step: int, item: T) -> None:
        """Keep an item of a step that is later than all kept ones."""
        self._items[step] = item
        if self._limit is not None:
            self._items.pop(step - self._limit, None)

    def forget_before(self, before: int) -> None:
        """Forget the items of every step before this one, because the peer has them."""
        while self._items and (oldest := next(iter(self._items))) < before:
            del self._items[oldest]

    def covers(self, first: int, stop: int) -> bool:
        """Tell whether the items of all steps [first, stop) are here, so that a peer at `first` can be brought to `stop`.

        Of a peer that claims to be beyond `stop` this is False.
        """
        return 0 <= stop - first <= len(self._items) and all(step in self._items for step in range(first, stop))

    def first_from(self, step: int) -> T | None:
        """The oldest item of this step or a later one; None where there is none."""
        return next((item for known, item in self._items.items() if known >= step), None)
