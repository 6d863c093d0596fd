"""Batches of a dataset that is only iterated (torch's IterableDataset): each has the next samples of its iterator.

Each epoch begins the iterator again, and so does its end within one. Who goes on within an epoch loads the state that the
dataset or its iterator told there, by `state_dict` and `load_state_dict`, as torchdata and Hugging Face have them. Where it
has none, the samples of the earlier batches are drawn again, each with its own random numbers.
"""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import structlog
from torch.utils.data import IterableDataset

from shared.errors import DataError
from shared.foreign import described

MOST_STATE_BYTES = 64 << 10
"""Largest state that is kept: each batch has one."""

_log = structlog.get_logger(__name__)


class BatchPlace(NamedTuple):
    """The place of a batch among those of its epoch."""

    epoch: int
    before: int
    """Number of the batches of the epoch before it."""


class StreamState(NamedTuple):
    """The place of an iterator, as its dataset tells it."""

    text: str
    """The states of the dataset and of its iterator, as JSON; empty where they are not kept."""
    why_unkept: str = ""

    def warn(self, name: str) -> None:
        """Warn that a dataset of this name has none that is kept."""
        does = "a resumed run draws the samples of its epoch again"
        _log.warning(f"the state of the training set is not kept, so {does}", dataset=name, reason=self.why_unkept)


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
        self._iterated = dataset
        """The dataset that the iterator is of: a copy, where that began by a state."""
        self._loads: str | None = None
        """State that the next iterator is to begin by."""

    def state(self) -> StreamState | None:
        """Tell the place after the last batch; None where neither the dataset nor its iterator has states."""
        try:
            told = [_told(self._iterated), _told(self._iterator)]
            if all(one is None for one in told):
                return None
            text = json.dumps(told)
            if json.loads(text) != told:
                return StreamState("", "JSON gives another one back")
        except Exception as error:
            return StreamState("", described(error))
        if len(text) > MOST_STATE_BYTES:
            return StreamState("", f"it has {len(text)} bytes as JSON, more than {MOST_STATE_BYTES}")
        return StreamState(text)

    def missing(self, place: BatchPlace, state: str | None = None) -> int:
        """Count the batches that are to be drawn before this one, from where the iterator is, or from its beginning.

        state: as it was told there; with one, there are none to draw.
        """
        if self._iterator is None or self._next.epoch != place.epoch or self._next.before > place.before:
            self._iterator, self._next, self._loads = None, BatchPlace(place.epoch, 0), None
        if state is not None and self._next != place:
            self._iterator, self._next, self._loads = None, place, state
        return place.before - self._next.before

    def draw(self, count: int, give_way: Callable[[], None]) -> list[Any]:
        """Return so many samples, the next batch. give_way: called after each."""
        samples: list[Any] = []
        try:
            begins = self._iterator is None and self._loads is None
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
                f"sample {number} of an epoch of {self._name} cannot be read: {described(error)}"
            ) from error
        self._iterator, self._next = iterator, self._next._replace(before=self._next.before + 1)
        return samples

    def _begun(self) -> Iterator[Any]:
        """Begin an iterator. A state is loaded by a copy, since a set may begin each iteration at what it has loaded."""
        loads, self._loads = self._loads, None
        if loads is None:
            self._iterated = self._dataset
            return self._begun_by(None, None)
        try:
            self._iterated = deepcopy(self._dataset)
            return self._begun_by(*json.loads(loads))
        except Exception as error:
            why = described(error)
            raise DataError(f"{self._name} cannot go on from the state that it told: {why}") from error

    def _begun_by(self, of_dataset: Any, of_iterator: Any) -> Iterator[Any]:
        if callable(set_epoch := getattr(self._iterated, "set_epoch", None)):
            set_epoch(self._next.epoch)
        if of_dataset is not None:
            self._iterated.load_state_dict(of_dataset)
        iterator: Iterator[Any] = iter(self._iterated)
        if of_iterator is not None:
            iterator.load_state_dict(of_iterator)  # type: ignore[attr-defined]
        return iterator


def _told(one: Any) -> Any:
    tells = callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))
    return one.state_dict() if tells else None
