"""Batches by step: which samples a step has follows from the seed and the step alone.

Therefore the loader has no state to save: a run that goes on at step n asks for step n. Only a dataset that is iterated may
have one. Knows nothing of how a sample is read.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.classes import Classes
from edge_agent.data.collate import Collate, Stacked
from edge_agent.data.order import SampleOrder
from edge_agent.data.rows import RowsDataset
from edge_agent.data.samples import BatchRequest, Dataset, SampleReader
from edge_agent.data.skipping import Skipping
from edge_agent.data.stream import BatchPlace, StreamState, is_iterated
from edge_agent.data.transform import BatchTransform
from shared.errors import DataError
from shared.model.features import Features
from shared.model.inputs import Inputs, features_of_inputs
from shared.model.random_state import derive_seed
from shared.training.losses import BatchLabels, counts_of, label_tensors
from shared.training.recipe import Recipe

AT_ONCE_BYTES = 1 << 20
"""Largest batch that is copied in less time than a thread takes to wake."""
KEPT_STATES = 8
"""Steps whose states are kept: more than are read ahead."""


class Reading(Enum):
    """Place where a batch is read: on a thread of its own, ahead of time, or on the thread that takes it."""

    AHEAD = "ahead"
    """Worker processes have it, or will have it soon."""
    AT_ONCE = "at once"
    """A batch is a few rows copied from memory."""
    AS_IT_SHOWS = "as it shows"
    """The time to read a batch is only known once some are read."""


@dataclass(frozen=True)
class Batch:
    """The samples of one step."""

    step: int
    inputs: Inputs
    """[B, ...]: the samples' inputs, stacked, each as the data set gives them; or what `collate` made of these."""
    labels: BatchLabels
    """[B, ...]: the samples' labels, stacked, a tensor or several. Integers are int64 here; `Prefetcher` narrows them to the
    smallest type that holds them."""
    numbers: Tensor | None = None
    """Numbers of all samples of the step, int32 [B], also where some are left out; see `BatchLoader.lacking`. None in an
    evaluation."""
    counts: Tensor | None = None
    """Counts of the labels; see `BatchLoader.counted`."""
    resumes_by_state: bool = False
    """See `BatchLoader`; told by `first_batch`."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(label_tensors(self.labels)[0])

    @property
    def features(self) -> Features:
        """The inputs in their order."""
        return features_of_inputs(self.inputs)


class BatchLoader:
    """The batches of a training run. Its worker processes live until it is closed."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int,
        drop_last: bool,
        workers: int,
        collate: Collate | None = None,
        first_sample: int = 0,
        group_batch: int | None = None,
        skipping: Skipping | None = None,
        order: SampleOrder | None = None,
        transform: BatchTransform | None = None,
        steps_per_epoch: int | None = None,
        *,
        resumes_by_state: bool = False,
        pins: bool = False,
    ) -> None:
        """batch_size: samples of a step; the last step of an epoch has the rest unless `drop_last` leaves them out.

        first_sample: sample of a group's batch with which this batch begins, so that each member draws other random numbers.
        group_batch: samples of the batch that the members divide among them, without the rest of an epoch; None where all
        samples are this device's. skipping: of samples that cannot be read; None has one such end it.
        order: of the samples, by a function of the user's own; None draws it. transform: changes each batch.
        steps_per_epoch: of a dataset that is only iterated, whose batches are all whole. resumes_by_state: it then goes on
        from a state that it has told, and does not draw an epoch's earlier samples again. pins: see `SampleReader`.
        Raises DataError for a dataset without length or items, or too small for one step.
        """
        self._is_iterated = steps_per_epoch is not None
        self._samples = sample_count(dataset, skipping) if steps_per_epoch is None else steps_per_epoch * batch_size
        whole = group_batch or batch_size
        self._order = order
        count = self._samples if order is None else order.count
        if order is not None and order.makes_batches:
            whole = 1
        if drop_last and count < whole:
            raise DataError(
                f"{type(dataset).__name__} has {count} samples, fewer than one batch of {whole}; "
                f"set data.batch_size to {count * batch_size // whole} or less"
                + ("" if group_batch else ", or data.drop_last = false")
            )
        self._name = type(dataset).__name__
        self._reader = SampleReader(dataset, workers, collate, transform, pins=pins)
        self.reading = _reading(self._reader, batch_size, workers)
        self._batch_size = batch_size
        self._seed = seed
        self._whole = whole
        self._offset = 0 if group_batch is None else first_sample
        self._first = (first_sample,) if first_sample else ()
        self.skipping = skipping
        self._resumes_by_state = resumes_by_state
        self._kept_states = KEPT_STATES
        self._states = dict[int, str]()
        """States of the dataset before the batches of some steps, the last ones read."""
        self._nothing: Stacked | None = None
        """A batch without samples, once one was read."""
        self.steps_per_epoch = count // whole if drop_last else -(-count // whole)
        """Steps of one pass over the data."""

    @property
    def samples(self) -> int:
        """Return the number of samples of the training set, or of an epoch where it is only iterated."""
        return self._samples

    def iterate(self, start_step: int, stop_step: int) -> Generator[Batch]:
        """The batches of steps `start_step` to `stop_step - 1`, over as many epochs as that takes.

        A caller that stops early closes the iterator. Raises DataError, naming the sample, for one that cannot be read.
        """
        numbers = deque[Tensor]()
        with closing(self._reader.read(self._requests(start_step, stop_step, numbers))) as batches:
            for step, (inputs, labels) in enumerate(batches, start=start_step):
                if self.skipping is not None:
                    self.skipping.note(step, self._reader.unreadable)
                if self._reader.state is not None:
                    self._note(step + 1, self._reader.state)
                yield Batch(step, inputs, labels, numbers.popleft())

    def lacking(self, start_step: int, stop_step: int, first_step: int) -> Generator[Batch]:
        """Read the batches of the same steps, but for the samples that an earlier step from `first_step` on has had.

        See `iterate`. Of a batch all samples may be left out.
        """
        had = self._had(first_step, start_step)
        numbers = deque[Tensor]()
        with closing(self._reader.read(self._requests(start_step, stop_step, numbers, had))) as batches:
            for step, (inputs, labels) in enumerate(batches, start=start_step):
                features, columns = features_of_inputs(inputs), label_tensors(labels)
                if len(columns[0]):
                    self._nothing = tuple(one[:0] for one in features), tuple(one[:0] for one in columns)
                    yield Batch(step, inputs, labels, numbers.popleft())
                else:
                    assert self._nothing is not None, "the batch of the first step has all its samples"
                    yield Batch(step, *self._nothing, numbers.popleft())

    def counted(self, start_step: int, stop_step: int, recipe: Recipe) -> Generator[Batch]:
        """Read the batches of the same steps with the counts of their labels: each update is read as a whole, ahead.

        See `iterate`; raises DataError too for a label that is no class.
        """
        update: list[Batch] = []
        self._kept_states = KEPT_STATES + recipe.accumulate_batches
        begin, end = recipe.first_of_update(start_step), recipe.boundary_from(stop_step)
        with closing(self.iterate(begin, end)) as batches:
            for batch in batches:
                update.append(batch)
                if recipe.updates_after(batch.step):
                    counts = counts_of(recipe.loss, [each.labels for each in update])
                    for each, of_batch in zip(update, counts, strict=True):
                        if start_step <= each.step < stop_step:
                            yield replace(each, counts=of_batch)
                    update.clear()

    def expect(self, classes: Classes) -> None:
        """See `SampleReader.expect`."""
        self._reader.expect(classes)

    def state_before(self, step: int) -> str | None:
        """Return the state of the dataset before the batch of one of the last steps, as JSON; None where it needs none."""
        return self._states.get(step)

    def read_by(self, step: int, state: str | None) -> None:
        """Have the batch of this step read by what `state_before` returned, also in another process, if it comes next."""
        if state is not None:
            self._states[step] = state

    def close(self) -> None:
        """End the worker processes."""
        self._reader.close()

    def _note(self, step: int, state: StreamState) -> None:
        if state.why_unkept and self._resumes_by_state:
            self._resumes_by_state = False
            state.warn(self._name)
        elif state.text and step % self.steps_per_epoch:  # an epoch begins the iterator again
            self._states[step] = state.text
        self._states.pop(step - self._kept_states, None)

    def _requests(
        self, start_step: int, stop_step: int, numbers: deque[Tensor], had: Tensor | None = None
    ) -> Iterator[BatchRequest]:
        """Yield the requests of steps. numbers: takes those of the samples of each. had: flags of samples that are left out."""
        for step, indices in self._indices(start_step, stop_step):
            numbers.append(torch.from_numpy(indices.numpy().astype(np.int32)))  # quicker than torch for a few numbers
            if had is not None:
                indices, had[indices] = indices[~had[indices]], True
            state = self._states.get(step) if self._resumes_by_state and step == start_step else None
            yield self._request(step, indices, state)

    def _request(self, step: int, indices: Tensor, state: str | None) -> BatchRequest:
        spares = None
        if self.skipping is not None:
            epoch = step // self.steps_per_epoch
            pool = self._samples if self._order is None else self._order.pool(epoch)
            spares = self.skipping.spares(epoch, pool)
        place = BatchPlace(*divmod(step, self.steps_per_epoch)) if self._is_iterated else None
        randomness = self._seed, "samples", step, *self._first
        return BatchRequest(indices.tolist(), randomness, spares, place, state, self._resumes_by_state)

    def _indices(self, start_step: int, stop_step: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the steps, each with the samples of its batch."""
        order_of = lru_cache(maxsize=1)(self._shuffled) if self._order is None else self._order.of
        for step in range(start_step, stop_step):
            epoch, position = divmod(step, self.steps_per_epoch)
            if self._is_iterated:  # an epoch may be longer than there is memory for its order
                yield step, torch.arange(position * self._batch_size, (position + 1) * self._batch_size)
                continue
            order = order_of(epoch)
            if isinstance(order, tuple):
                yield step, order[position]
                continue
            begin = position * self._whole + self._offset
            yield step, order[begin : begin + self._batch_size]

    def _had(self, first_step: int, stop_step: int) -> Tensor:
        """Tell of each sample whether any of these steps has it."""
        had = torch.zeros(self._samples, dtype=torch.bool)
        for step, indices in self._indices(first_step, stop_step):
            had[indices] = True
            if step % self.steps_per_epoch == 0 and had.all():
                break
        return had

    def _shuffled(self, epoch: int) -> Tensor:
        """Indices of all samples, in the order of this epoch."""
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", epoch))
        return torch.randperm(self._samples, generator=generator)


class EvaluationLoader:
    """All samples of a dataset in their order, once for each `iterate`. Its worker processes live until it is closed."""

    def __init__(self, dataset: Dataset, batch_size: int, workers: int = 0, collate: Collate | None = None) -> None:
        """Raises DataError for a dataset without length or items."""
        self._samples = sample_count(dataset)
        self._reader = SampleReader(dataset, workers, collate)
        self.reading = _reading(self._reader, batch_size, workers)
        self._batch_size = batch_size
        self.batches = -(-self._samples // batch_size)
        """Batches of one pass."""

    def iterate(self) -> Generator[Batch]:
        """One pass; the last batch may be shorter, and `step` counts from 0. Raises as `BatchLoader.iterate`."""
        requests = (
            BatchRequest(
                list(range(begin, min(begin + self._batch_size, self._samples))), randomness=("evaluation", begin)
            )
            for begin in range(0, self._samples, self._batch_size)
        )
        with closing(self._reader.read(requests)) as batches:
            for step, (inputs, labels) in enumerate(batches):
                yield Batch(step, inputs, labels)

    def expect(self, classes: Classes) -> None:
        """See `SampleReader.expect`."""
        self._reader.expect(classes)

    def close(self) -> None:
        """End the worker processes."""
        self._reader.close()


def evaluation_batches(
    dataset: Dataset, batch_size: int, workers: int = 0, collate: Collate | None = None
) -> Generator[Batch]:
    """One pass of an `EvaluationLoader`."""
    with closing(EvaluationLoader(dataset, batch_size, workers, collate)) as loader:
        yield from loader.iterate()


def _reading(reader: SampleReader, batch_size: int, workers: int) -> Reading:
    if workers:
        return Reading.AHEAD
    return Reading.AT_ONCE if reader.copied_bytes(batch_size) <= AT_ONCE_BYTES else Reading.AS_IT_SHOWS


def sample_count(dataset: Dataset, skipping: Skipping | None = None) -> int:
    """Count the samples of a dataset. Raises DataError for one without length or items."""
    name = type(dataset).__name__
    if is_iterated(dataset):
        raise DataError(f"{name} can only be iterated; a set to evaluate on must have __len__ and __getitem__")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name} is not a dataset; it must have __len__ and __getitem__")
    if not len(dataset):
        raise DataError(f"{name} is empty; it must have at least one sample")
    if skipping is None and isinstance(dataset, RowsDataset):
        raise DataError(next(iter(dataset.broken.values())))
    return len(dataset)
