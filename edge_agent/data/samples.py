"""Reads the samples of a dataset and makes batches of them, here or in worker processes, with the same values either way.

The random numbers that a dataset draws while it is read (augmentation) depend on the request alone: the generators of
torch, `random` and numpy are seeded before each batch. Which samples a batch has is the caller's choice.
"""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pickle import PicklingError
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset as TorchTensorDataset

from edge_agent.data.classes import Classes
from edge_agent.data.collate import Collate, Stacked
from edge_agent.data.randomness import drawing, spare_restored
from edge_agent.data.shared_memory import REMEDY, is_lack_of_room
from edge_agent.data.skipping import Spares, Unreadable
from edge_agent.data.stacker import SampleKind, Stacker
from edge_agent.data.stream import BatchPlace, Stream, StreamState, is_iterated
from edge_agent.data.tensors import TensorDataset
from edge_agent.data.transform import BatchTransform
from shared.errors import DataError, one_line
from shared.foreign import described
from shared.training.losses import widened

T = TypeVar("T")


class Dataset(Protocol):
    """The interface of the datasets that a dataset factory returns."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any:
        """(input, label): a tensor or array, a tuple of these, or these by name; and a number, tensor or array, or a tuple of
        these. With a collate function of the user's own, whatever this one takes."""


@dataclass(frozen=True)
class BatchRequest:
    """One batch to read."""

    indices: list[int]
    randomness: tuple[int | str, ...]
    """Everything that the random numbers of these samples depend on."""
    spares: Spares | None = None
    """The samples that take the place of those that cannot be read; None if one such ends the reading."""
    place: BatchPlace | None = None
    """The place of the batch where the dataset is only iterated; `indices` then count the samples of an epoch."""
    state: str | None = None
    """The state that the dataset told there; without one, it is drawn up to the place."""
    tells_state: bool = False
    """True if the dataset is to tell its state after the batch."""

    def earlier(self, batches: int) -> tuple[int | str, ...]:
        """Return `randomness` of an earlier batch, of a request whose third part is the step."""
        seed, what, step, *more = self.randomness
        assert isinstance(step, int), "batches of training have steps"
        return seed, what, step - batches, *more


class _Read(NamedTuple):
    """A batch with more to tell: other samples stand for some that cannot be read, or the dataset has a state after it."""

    batch: Stacked
    unreadable: list[Unreadable]
    state: StreamState | None


class SampleReader:
    """Reads batches of one dataset. Worker processes start with the first `read` and live until `close`.

    workers: processes that read ahead, two batches each. With 0, this process reads each batch when it is asked for.
    collate: makes a batch of samples, wherever they are read. Without one, they are stacked.
    transform: changes each batch then, with random numbers of its own. pins: have what workers read in memory that a GPU
    copies from by itself.
    """

    def __init__(
        self,
        dataset: Dataset,
        workers: int,
        collate: Collate | None = None,
        transform: BatchTransform | None = None,
        *,
        pins: bool = False,
    ) -> None:
        self._batches = _RequestedBatches(dataset, collate, transform)
        self._workers = workers
        self._pins = pins
        self._requests = _Requests()
        self._loader: DataLoader[Stacked | _Read | str] | None = None
        self.unreadable: list[Unreadable] = []
        """Samples of the last batch in whose places others are."""
        self.state: StreamState | None = None
        """State of the dataset after the last batch, where that was to be told and it can."""

    def read(self, requests: Iterable[BatchRequest]) -> Generator[Stacked]:
        """Inputs and labels of each request in turn, with the samples along the first dimension. Integer labels are int64.
        Those of a request without samples are empty, and of no kind.

        The requests of an earlier call are dropped. Raises DataError, naming the sample, for one that cannot be read or that
        does not fit the others, and for a batch that `collate` does not make as it should.
        """
        if self._workers == 0:
            with spare_restored():
                for request in requests:
                    yield self._batch_of(self._batches.read(request))
            return
        self._requests.current = requests
        name = self._batches.name
        try:
            for answer in self._running_loader():
                if isinstance(answer, str):
                    raise DataError(answer)
                yield self._batch_of(answer)
        except (PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise DataError(f"{name} cannot be sent to worker processes ({error}); use 0 workers") from error
        except RuntimeError as error:
            self.close()
            lacks = f"; /dev/shm has no room: {REMEDY}" if is_lack_of_room(str(error)) else ""
            raise DataError(f"a worker process of {name} ended: {one_line(str(error))}{lacks}") from error

    def _batch_of(self, answer: Stacked | _Read) -> Stacked:
        if isinstance(answer, _Read):
            batch, self.unreadable, self.state = answer
            return batch
        if self.unreadable:
            self.unreadable = []
        self.state = None
        return answer

    @property
    def kind(self) -> SampleKind | None:
        """Return the kind of the samples last read here for which others may stand; None where a function makes batches."""
        return self._batches.kind

    def usual_kind(self, request: BatchRequest) -> SampleKind | None:
        """Return the kind that most of these samples have, of several the first; None where none can be read, or a function
        makes batches."""
        with spare_restored():
            return self._batches.usual_kind(request)

    def copied_bytes(self, samples: int) -> float:
        """The bytes of so many samples where reading copies rows of tensors in memory, and no more; infinite elsewhere."""
        return self._batches.copied_bytes(samples)

    def expect(self, classes: Classes) -> None:
        """Refuse from now on labels that are none of these classes. Raises DataError at once for those in memory."""
        self._batches.expect(classes)

    def close(self) -> None:
        """End the worker processes; they end as soon as no batch is being read."""
        self._loader = None

    def _running_loader(self) -> "DataLoader[Stacked | _Read | str]":
        if self._loader is None:
            self._loader = DataLoader(
                self._batches,
                batch_size=None,  # a request is a batch already
                sampler=self._requests,
                num_workers=self._workers,
                collate_fn=_unchanged,
                multiprocessing_context="spawn",  # gRPC does not survive a fork
                generator=torch.Generator(),  # or the loader draws from the process's own
                persistent_workers=True,
                pin_memory=self._pins,
            )
        return self._loader


def _detached(part: Any) -> Any:
    """Return inputs or labels without the graph that made them: no gradient of theirs updates a weight of the model."""
    if isinstance(part, Tensor):
        return part.detach() if part.requires_grad else part
    if isinstance(part, dict):
        return {name: _detached(tensor) for name, tensor in part.items()}
    return tuple(map(_detached, part))


class _Requests:
    """The requests of the `read` that goes on now. The loader, which lives longer, takes it as its sampler."""

    def __init__(self) -> None:
        self.current: Iterable[BatchRequest] = ()

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self.current)


class _RequestedBatches(TorchDataset[Stacked | _Read | str]):
    """The dataset of the loader: its index is a request and its item a whole batch."""

    def __init__(self, dataset: Dataset, collate: Collate | None, transform: BatchTransform | None) -> None:
        self._dataset = dataset
        self._stream = Stream(dataset) if is_iterated(dataset) else None
        self._collate = collate
        self._transform = transform
        self._tensors = _tensors_of(dataset) if collate is None and transform is None else None
        self._classes: Classes | None = None
        self._numpys = np.random.MT19937()
        self.name = type(dataset).__name__
        self._stacker = Stacker(self.name)
        self.kind: SampleKind | None = None
        """See `SampleReader.kind`."""

    def expect(self, classes: Classes) -> None:
        """See `SampleReader.expect`."""
        self._classes = classes
        if self._tensors is not None:
            classes.check(self._tensors[1], range(len(self._tensors[1])))

    def copied_bytes(self, samples: int) -> float:
        """See `SampleReader.copied_bytes`."""
        return math.inf if self._tensors is None else samples * sum(tensor[0].nbytes for tensor in self._tensors)

    def usual_kind(self, request: BatchRequest) -> SampleKind | None:
        """See `SampleReader.usual_kind`."""
        kinds = Counter[SampleKind | None]()
        with drawing(self._numpys, *request.randomness):
            for index in request.indices:
                with suppress(DataError):
                    kinds[self._checked(index, None)[1]] += 1
        return kinds.most_common(1)[0][0] if kinds else None

    def __getitem__(self, request: BatchRequest) -> Stacked | _Read | str:
        """The batch or, since an exception would leave a worker process as a traceback, the sentence of a DataError."""
        try:
            return self.read(request)
        except DataError as error:
            return str(error)

    def read(self, request: BatchRequest) -> Stacked | _Read:
        """Inputs and labels, stacked. Raises DataError, naming the sample."""
        if not request.indices:
            return torch.empty(0), torch.empty(0)
        if self._tensors is not None:
            rows = torch.tensor(request.indices)
            inputs, labels = (tensor.detach().index_select(0, rows) for tensor in self._tensors)
            return inputs, widened(labels)
        # Seeded once a batch: seeding each sample cost more than reading it.
        indices, unreadable = request.indices, list[Unreadable]()
        if self._stream is not None and request.place is not None:
            self._draw_before(request, self._stream.missing(request.place, request.state))
        with drawing(self._numpys, *request.randomness) as give_way:
            if self._stream is not None:
                samples = self._stream.draw(len(indices), give_way)
            else:
                samples, indices = self._by_index(request, unreadable, give_way)
            batch = self._stacker(samples, indices) if self._collate is None else self._collate(samples)
            if self._transform is not None:
                batch = self._transform(batch)
        batch = _detached(batch[0]), _detached(batch[1])
        if self._classes is not None:
            self._classes.check(batch[1], indices)
        state = self._stream.state() if self._stream is not None and request.tells_state else None
        return _Read(batch, unreadable, state) if unreadable or state is not None else batch

    def _draw_before(self, request: BatchRequest, count: int) -> None:
        """Draw so many batches before this one, as they were drawn."""
        assert self._stream is not None, "a batch has a place where the dataset is only iterated"
        for batches in range(count, 0, -1):
            with drawing(self._numpys, *request.earlier(batches)) as give_way:
                self._stream.draw(len(request.indices), give_way)

    def _by_index(
        self, request: BatchRequest, unreadable: list[Unreadable], give_way: Callable[[], None]
    ) -> tuple[list[Any], list[int]]:
        """Return the samples of a batch, with the indices of those that were read. unreadable: takes those that cannot be."""
        samples = list[Any]()
        indices = request.indices if request.spares is None else request.indices.copy()
        like = None if request.spares is None else request.spares.like
        for place, index in enumerate(indices):
            if request.spares is None:
                samples.append(self._sample(index))
            else:
                read = partial(self._checked, like=like)
                (sample, like), indices[place] = request.spares.read(index, read, unreadable)
                samples.append(sample)
            give_way()  # a block that drops out must not wait for a whole batch to be read
        self.kind = like
        return samples, indices

    def _sample(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            what = one_line(str(error)) if isinstance(error, DataError) else described(error)
            raise DataError(f"sample {index} of {self.name} cannot be read: {what}") from error

    def _checked(self, index: int, like: SampleKind | None) -> tuple[Any, SampleKind | None]:
        """Read a sample for which another one may stand; what would fit no batch of this kind cannot be read either."""
        sample = self._sample(index)
        return sample, self._stacker.kind(sample, index, like) if self._collate is None else None


def _tensors_of(dataset: Dataset) -> tuple[Tensor, Tensor] | None:
    """Inputs and labels of all samples of a dataset that only copies them: of ours in memory, and of torch's."""
    if isinstance(dataset, TensorDataset):
        tensors = dataset.in_memory
    elif type(dataset) is TorchTensorDataset and len(dataset.tensors) == 2:
        tensors = dataset.tensors[0], dataset.tensors[1]
    else:
        return None
    # Rows with another layout would be stacked with other strides.
    return tensors if tensors is not None and all(tensor.is_contiguous() for tensor in tensors) else None


def _unchanged(value: T) -> T:
    return value
