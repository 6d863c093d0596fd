"""Batches of a dataset that is only iterated (torch's IterableDataset): each has the next samples of its iterator.

Each epoch begins the iterator again, and so does its end within one. The place in it is a count of batches, so there is no
state to save: who goes on within an epoch draws the samples of its earlier batches again, each with its own random numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from edge_agent.data.described import one_line
from shared.errors import DataError


class BatchPlace(NamedTuple):
    """The place of a batch among those of its epoch."""

    epoch: int
    before: int
    """Number of the batches of the epoch before it."""


def is_iterated(dataset: Any) -> bool:
    """Tell whether a dataset has to be iterated. An iterator is none, which could not begin again."""
    if isinstance(dataset, IterableDataset):
        return True
    by_index = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__next__") and not by_index


class Stream:
    """The samples of one dataset, in its order. Raises DataError for such as cannot be read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._name = type(dataset).__name__
        self._iterator: Iterator[Any] | None = None
        self._next = BatchPlace(0, 0)

    def missing(self, place: BatchPlace) -> int:
        """Count the batches that are to be drawn before this one, from where the iterator is, or from its beginning."""
        if self._iterator is None or self._next.epoch != place.epoch or self._next.before > place.before:
            self._iterator, self._next = None, BatchPlace(place.epoch, 0)
        return place.before - self._next.before

    def draw(self, count: int, give_way: Callable[[], None]) -> list[Any]:
        """Return so many samples, the next batch. give_way: called after each."""
        samples: list[Any] = []
        try:
            begins = self._iterator is None
            iterator = self._begun() if self._iterator is None else self._iterator
            while len(samples) < count:
                try:
                    samples.append(next(iterator))
                except StopIteration:
                    if begins:
                        raise DataError(f"{self._name} gives no samples") from None
                    iterator, begins = self._begun(), True
                else:
                    begins = False
                give_way()
        except Exception as error:
            self._iterator = None
            if isinstance(error, DataError):
                raise
            number = self._next.before * count + len(samples)
            raise DataError(
                f"sample {number} of an epoch of {self._name} cannot be read: {type(error).__name__}: {one_line(error)}"
            ) from error
        self._iterator, self._next = iterator, self._next._replace(before=self._next.before + 1)
        return samples

    def _begun(self) -> Iterator[Any]:
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(self._next.epoch)
        return iter(self._dataset)
