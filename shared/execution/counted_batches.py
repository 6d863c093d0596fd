"""The batches of a session in one process: counted by their labels, and kept until all workers with samples have them."""

from collections.abc import Iterator
from itertools import count

from torch import Tensor

from shared.model.inputs import Inputs
from shared.training.losses import BatchLabels, counts_of
from shared.training.recipe import Recipe

Batch = tuple[Inputs, BatchLabels]
"""Inputs and labels."""
CountedBatch = tuple[Inputs, BatchLabels, Tensor | None]
"""The same, and the counts of its labels where the loss goes by them."""


def uncounted(batches: Iterator[Batch]) -> Iterator[CountedBatch]:
    """Yield the same batches, where the loss goes by no counts."""
    yield from ((*batch, None) for batch in batches)


def counted(first_step: int, batches: Iterator[Batch], recipe: Recipe) -> Iterator[CountedBatch]:
    """Yield the same batches with the counts of their labels; each update is read ahead.

    Of an update that these batches do not end, those count that are here.
    """
    update: list[Batch] = []
    for step in count(first_step):
        if (batch := next(batches, None)) is not None:
            update.append(batch)
        if batch is None or recipe.updates_after(step):
            counts = counts_of(recipe.loss, [labels for _, labels in update])
            yield from ((*each, of_batch) for each, of_batch in zip(update, counts, strict=True))
            update.clear()
        if batch is None:
            return


class WaitingBatches:
    """The batches that some worker with samples has not got yet."""

    def __init__(self, batches: Iterator[CountedBatch], first_step: int) -> None:
        self._batches = batches
        self._next = first_step
        self._kept: dict[int, CountedBatch] = {}

    def at(self, step: int) -> CountedBatch | None:
        """Return the batch of a step; None after the last one."""
        while self._next <= step and (batch := next(self._batches, None)) is not None:
            self._kept[self._next] = batch
            self._next += 1
        return self._kept.get(step)

    def drop_before(self, step: int) -> None:
        """Forget the batches that all have got."""
        for done in [kept for kept in self._kept if kept < step]:
            del self._kept[done]
