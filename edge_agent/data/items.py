"""Samples of a dataset read and put together to batches, here or in worker processes; the same samples either way.

Whatever a dataset draws while it is read (augmentation) depends on what the caller asks for and on nothing else: the
generators of torch, `random` and numpy are set before each batch. The order of samples is not decided here.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from shared.errors import DataError
from shared.model.random_state import derive_seed, random_state

T = TypeVar("T")


class Dataset(Protocol):
    """What a dataset factory returns."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any:
        """(input, label): a tensor or array, and an integer, tensor or array."""


@dataclass(frozen=True)
class Request:
    """One batch to read."""

    indices: list[int]
    randomness: tuple[int | str, ...]
    """All that the random numbers of these samples depend on."""


def read_batches(dataset: Dataset, requests: Iterable[Request], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of each request in turn, stacked along a new first dimension; integer labels are int64.

    workers: processes that read ahead, two batches each; 0 reads here, when asked.
    Raises DataError, naming the sample, for one that cannot be read or that does not fit the others.
    """
    reader = _Reader(dataset)
    if workers == 0:
        for request in requests:
            with _libraries_restored():
                batch = reader.read(request)
            yield batch
        return
    loader = DataLoader(
        reader,
        batch_size=None,  # a request is a batch already
        sampler=requests,
        num_workers=workers,
        collate_fn=_unchanged,
        multiprocessing_context="spawn",  # gRPC does not survive a fork
        generator=torch.Generator(),  # or the loader draws from the process's own
    )
    try:
        for answer in loader:
            if isinstance(answer, str):
                raise DataError(answer)
            yield answer
    except (PicklingError, AttributeError, TypeError) as error:
        raise DataError(f"{reader.name} cannot be sent to worker processes ({error}); use 0 workers") from error
    except RuntimeError as error:
        raise DataError(f"a worker process of {reader.name} ended: {_one_line(error)}") from error


class _Reader(TorchDataset[tuple[Tensor, Tensor] | str]):
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.name = type(dataset).__name__

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | str:
        """In a worker: the batch, or the sentence of its DataError, since an exception would arrive as a traceback."""
        try:
            return self.read(request)
        except DataError as error:
            return str(error)

    def read(self, request: Request) -> tuple[Tensor, Tensor]:
        # Seeded once a batch: seeding each sample cost more than reading it.
        with random_state(*request.randomness):
            seed = derive_seed(*request.randomness)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            samples = [self._sample(index) for index in request.indices]
        inputs, labels = zip(*samples, strict=True)
        return self._stack(inputs, request.indices, "input"), self._stack(labels, request.indices, "label")

    def _sample(self, index: int) -> tuple[Tensor, Tensor]:
        try:
            sample = self._dataset[index]
        except Exception as error:
            what = f"{type(error).__name__}: {_one_line(error)}"
            raise DataError(f"sample {index} of {self.name} cannot be read: {what}") from error
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(f"sample {index} of {self.name} is {_kind(sample)}; it must be a pair of input and label")
        return self._input(sample[0], index), self._label(sample[1], index)

    def _input(self, value: Any, index: int) -> Tensor:
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"the input of sample {index} of {self.name} is {_kind(value)}; it must be a tensor or an array"
            )
        return self._tensor(value, index)

    def _label(self, value: Any, index: int) -> Tensor:
        if isinstance(value, int | np.integer):
            return torch.tensor(int(value))
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"the label of sample {index} of {self.name} is {_kind(value)}; it must be an integer, a tensor or an "
                "array"
            )
        label = self._tensor(value, index)
        return label if label.is_floating_point() else label.long()

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
                    f"the {part} of sample {index} of {self.name} is {_layout(tensor)}, that of sample {indices[0]} "
                    f"{_layout(first)}; those of one batch must be alike"
                )
        return torch.stack(tensors)


@contextmanager
def _libraries_restored() -> Iterator[None]:
    """Leave `random` and numpy as they were; torch's generator is `random_state`'s care."""
    python_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _unchanged(value: T) -> T:
    return value


def _kind(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"of type {type(value).__name__}{length}"


def _layout(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
