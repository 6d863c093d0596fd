"""Reads the samples of a dataset and makes batches of them, here or in worker processes, with the same values either way.

The random numbers that a dataset draws while it is read (augmentation) depend on the request alone: the generators of
torch, `random` and numpy are seeded before each batch. Which samples a batch has is the caller's choice.
"""

import math
import random
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset as TorchTensorDataset

from edge_agent.data.collate import Collate, Stacked
from edge_agent.data.described import keys_of, kind_of, layout_of, one_line
from edge_agent.data.tensors import TensorDataset
from shared.errors import DataError
from shared.model.inputs import Inputs, as_inputs, features_of_inputs, names_of_inputs
from shared.model.random_state import LIBRARIES, derive_seed, random_state
from shared.training.losses import BatchLabels, label_tensors, widened

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


class SampleReader:
    """Reads batches of one dataset. Worker processes start with the first `read` and live until `close`.

    workers: processes that read ahead, two batches each. With 0, this process reads each batch when it is asked for.
    collate: makes a batch of samples, wherever they are read. Without one, they are stacked.
    """

    def __init__(self, dataset: Dataset, workers: int, collate: Collate | None = None) -> None:
        self._batches = _RequestedBatches(dataset, collate)
        self._workers = workers
        self._requests = _Requests()
        self._loader: DataLoader[Stacked | str] | None = None

    def read(self, requests: Iterable[BatchRequest]) -> Generator[Stacked]:
        """Inputs and labels of each request in turn, with the samples along the first dimension. Integer labels are int64.
        Those of a request without samples are empty, and of no kind.

        The requests of an earlier call are dropped. Raises DataError, naming the sample, for one that cannot be read or that
        does not fit the others, and for a batch that `collate` does not make as it should.
        """
        if self._workers == 0:
            with _spare_restored():
                for request in requests:
                    yield self._batches.read(request)
            return
        self._requests.current = requests
        name = self._batches.name
        try:
            for answer in self._running_loader():
                if isinstance(answer, str):
                    raise DataError(answer)
                yield answer
        except (PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise DataError(f"{name} cannot be sent to worker processes ({error}); use 0 workers") from error
        except RuntimeError as error:
            self.close()
            raise DataError(f"a worker process of {name} ended: {one_line(error)}") from error

    def copied_bytes(self, samples: int) -> float:
        """The bytes of so many samples where reading copies rows of tensors in memory, and no more; infinite elsewhere."""
        return self._batches.copied_bytes(samples)

    def close(self) -> None:
        """End the worker processes; they end as soon as no batch is being read."""
        self._loader = None

    def _running_loader(self) -> "DataLoader[Stacked | str]":
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
            )
        return self._loader


class _Requests:
    """The requests of the `read` that goes on now. The loader, which lives longer, takes it as its sampler."""

    def __init__(self) -> None:
        self.current: Iterable[BatchRequest] = ()

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self.current)


class _RequestedBatches(TorchDataset[Stacked | str]):
    """The dataset of the loader: its index is a request and its item a whole batch."""

    def __init__(self, dataset: Dataset, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._tensors = _tensors_of(dataset) if collate is None else None
        self._numpys = np.random.MT19937()
        self.name = type(dataset).__name__

    def copied_bytes(self, samples: int) -> float:
        """See `SampleReader.copied_bytes`."""
        return math.inf if self._tensors is None else samples * sum(tensor[0].nbytes for tensor in self._tensors)

    def __getitem__(self, request: BatchRequest) -> Stacked | str:
        """The batch or, since an exception would leave a worker process as a traceback, the sentence of a DataError."""
        try:
            return self.read(request)
        except DataError as error:
            return str(error)

    def read(self, request: BatchRequest) -> Stacked:
        """Inputs and labels, stacked. Raises DataError, naming the sample."""
        if not request.indices:
            return torch.empty(0), torch.empty(0)
        if self._tensors is not None:
            rows = torch.tensor(request.indices)
            inputs, labels = (tensor.index_select(0, rows) for tensor in self._tensors)
            return inputs, widened(labels)
        # Seeded once a batch: seeding each sample cost more than reading it.
        samples = []
        with _libraries_restored(self._numpys), random_state(*request.randomness) as give_way:
            seed = derive_seed(*request.randomness)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            for index in request.indices:
                try:
                    samples.append(self._dataset[index])
                except Exception as error:
                    what = f"{type(error).__name__}: {one_line(error)}"
                    raise DataError(f"sample {index} of {self.name} cannot be read: {what}") from error
                give_way()  # a block that drops out must not wait for a whole batch to be read
            if self._collate is not None:
                return self._collate(samples)
        return _stacked_at_once(samples) or self._stacked(samples, request.indices)

    def _stacked(self, samples: list[Any], indices: list[int]) -> Stacked:
        inputs, labels = zip(*map(self._sample, samples, indices), strict=True)
        first = inputs[0]
        for given, index in zip(inputs, indices, strict=True):
            if keys_of(given) != keys_of(first):
                raise DataError(
                    f"the input of sample {index} of {self.name} has {_named(given)}, that of sample {indices[0]} "
                    f"{_named(first)}; those of one batch must be alike"
                )
        return self._stack_inputs(inputs, indices), self._stack_labels(labels, indices)

    def _stack_inputs(self, inputs: tuple[Inputs, ...], indices: list[int]) -> Inputs:
        columns = list(zip(*map(features_of_inputs, inputs), strict=True))
        parts = [f"input {part}" for part in keys_of(inputs[0])] or ["input"]
        stacked = tuple(self._stack(column, indices, part) for part, column in zip(parts, columns, strict=True))
        return stacked if isinstance(inputs[0], tuple) else as_inputs(stacked, names_of_inputs(inputs[0]))

    def _stack_labels(self, labels: tuple[BatchLabels, ...], indices: list[int]) -> BatchLabels:
        for given, index in zip(labels, indices, strict=True):
            if keys_of(given) != keys_of(labels[0]):
                raise DataError(
                    f"the label of sample {index} of {self.name} has {_named(given)}, that of sample {indices[0]} "
                    f"{_named(labels[0])}; those of one batch must be alike"
                )
        columns = zip(*map(label_tensors, labels), strict=True)
        parts = [f"label {part}" for part in keys_of(labels[0])] or ["label"]
        stacked = tuple(self._stack(column, indices, part) for part, column in zip(parts, columns, strict=True))
        return stacked if isinstance(labels[0], tuple) else stacked[0]

    def _sample(self, sample: Any, index: int) -> tuple[Inputs, BatchLabels]:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(f"sample {index} of {self.name} is {kind_of(sample)}; it must be a pair of input and label")
        given = sample[1]
        if isinstance(given, tuple) and given:
            return self._input(sample[0], index), tuple(
                self._label(one, index, f" {place}") for place, one in enumerate(given)
            )
        return self._input(sample[0], index), self._label(given, index)

    def _input(self, value: Any, index: int) -> Inputs:
        if isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
            return {name: self._part(one, index, f" {name!r}") for name, one in value.items()}
        if isinstance(value, tuple) and value:
            return tuple(self._part(one, index, f" {place}") for place, one in enumerate(value))
        return self._part(value, index)

    def _part(self, value: Any, index: int, part: str = "") -> Tensor:
        if part and isinstance(value, int | float | np.number):
            return torch.tensor(value)
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"the input{part} of sample {index} of {self.name} is {kind_of(value)}; it must be a tensor or an array"
            )
        return self._tensor(value, index)

    def _label(self, value: Any, index: int, part: str = "") -> Tensor:
        if isinstance(value, int | np.integer):
            return torch.tensor(int(value))
        if isinstance(value, float | np.floating):
            return torch.tensor(float(value))
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"the label{part} of sample {index} of {self.name} is {kind_of(value)}; it must be a number, a tensor or an "
                "array"
            )
        return widened(self._tensor(value, index))

    def _tensor(self, value: Tensor | np.ndarray[Any, Any], index: int) -> Tensor:
        try:
            return torch.as_tensor(value)
        except TypeError as error:
            raise DataError(
                f"sample {index} of {self.name} holds an array that torch has no type for: {error}"
            ) from error

    def _stack(self, tensors: tuple[Tensor, ...], indices: list[int], part: str) -> Tensor:
        first = tensors[0]
        for tensor, index in zip(tensors, indices, strict=True):
            if tensor.shape != first.shape or tensor.dtype != first.dtype:
                raise DataError(
                    f"the {part} of sample {index} of {self.name} is {layout_of(tensor)}, that of sample {indices[0]} "
                    f"{layout_of(first)}; those of one batch must be alike"
                )
        return torch.stack(tensors)


def _named(inputs: Inputs) -> str:
    return f"the parts {', '.join(keys)}" if (keys := keys_of(inputs)) else "one tensor"


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


def _stacked_at_once(samples: list[Any]) -> tuple[Tensor, Tensor] | None:
    """The usual samples, pairs of a tensor and the number of a class; None where any is another or they are not alike."""
    if set(map(type, samples)) != {tuple} or set(map(len, samples)) != {2}:
        return None
    inputs, labels = zip(*samples, strict=True)
    if set(map(type, inputs)) != {Tensor} or set(map(type, labels)) != {int}:
        return None
    if len({tensor.dtype for tensor in inputs}) > 1:
        return None
    try:
        return torch.stack(inputs), torch.tensor(labels)
    except RuntimeError:  # of different shapes; or a number that no tensor holds
        return None


@contextmanager
def _libraries_restored(numpys: np.random.BitGenerator) -> Iterator[None]:
    """Put the generators of `random` and numpy back afterwards; `random_state` does so for torch's.

    numpys: the one that numpy draws from meanwhile. To copy the state of its own would take longer than to read a batch.
    """
    with LIBRARIES:
        python_state, numpys_own = random.getstate(), mtrand.get_bit_generator()
        mtrand.set_bit_generator(numpys)
        try:
            yield
        finally:
            random.setstate(python_state)
            mtrand.set_bit_generator(numpys_own)


@contextmanager
def _spare_restored() -> Iterator[None]:
    """Give numpy its spare normal number back afterwards, which it drops when its generator is another."""
    with LIBRARIES:
        before = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        if before["has_gauss"]:
            with LIBRARIES:
                now = np.random.get_state(legacy=False)
                np.random.set_state({**now, "has_gauss": before["has_gauss"], "gauss": before["gauss"]})


def _unchanged(value: T) -> T:
    return value
