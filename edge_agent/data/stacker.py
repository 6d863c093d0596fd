"""The stacking of samples to a batch, where no function of the user's own makes it, and the judge of each sample."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.collate import Stacked
from edge_agent.data.described import keys_of, kind_of, layout_of
from shared.errors import DataError
from shared.model.inputs import Inputs, as_inputs, features_of_inputs, names_of_inputs
from shared.model.spec import TensorSpec
from shared.training.losses import BatchLabels, label_tensors, widened


class SampleKind(NamedTuple):
    """Kind that the samples of a batch have alike."""

    parts: tuple[str, ...]
    """Names of the tensors of the inputs, then of the labels."""
    specs: tuple[TensorSpec, ...]
    """Shapes and element types of them."""

    def told(self) -> str:
        """Return it in words."""
        return ", ".join(f"{part} {layout_of(spec)}" for part, spec in zip(self.parts, self.specs, strict=True))


class Stacker:
    """Makes batches of the samples of one dataset. Raises DataError, naming the sample that does not fit."""

    def __init__(self, name: str) -> None:
        """name: of the dataset, for the sentences."""
        self._name = name

    def __call__(self, samples: list[Any], indices: list[int]) -> Stacked:
        """Return inputs and labels, each with the samples along the first dimension. Integer labels are int64."""
        return _stacked_at_once(samples) or self._stacked(samples, indices)

    def kind(self, sample: Any, index: int, like: SampleKind | None) -> SampleKind:
        """Return the kind of a sample. Refuse what is no sample by itself, or is of another kind than `like`."""
        inputs, labels = self._sample(sample, index)
        kind = SampleKind(
            tuple(
                name
                for what, one in (("input", inputs), ("label", labels))
                for name in ([f"{what} {part}" for part in keys_of(one)] or [what])
            ),
            tuple(map(TensorSpec.of, (*features_of_inputs(inputs), *label_tensors(labels)))),
        )
        if like is not None and kind != like:
            raise DataError(
                f"sample {index} of {self._name} has {kind.told()}, and others have {like.told()}; all must be alike"
            )
        return kind

    def _stacked(self, samples: list[Any], indices: list[int]) -> Stacked:
        inputs, labels = zip(*map(self._sample, samples, indices), strict=True)
        first = inputs[0]
        for given, index in zip(inputs, indices, strict=True):
            if keys_of(given) != keys_of(first):
                raise DataError(
                    f"the input of sample {index} of {self._name} has {_named(given)}, that of sample {indices[0]} "
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
                    f"the label of sample {index} of {self._name} has {_named(given)}, that of sample {indices[0]} "
                    f"{_named(labels[0])}; those of one batch must be alike"
                )
        columns = zip(*map(label_tensors, labels), strict=True)
        parts = [f"label {part}" for part in keys_of(labels[0])] or ["label"]
        stacked = tuple(self._stack(column, indices, part) for part, column in zip(parts, columns, strict=True))
        return stacked if isinstance(labels[0], tuple) else stacked[0]

    def _sample(self, sample: Any, index: int) -> tuple[Inputs, BatchLabels]:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(
                f"sample {index} of {self._name} is {kind_of(sample)}; it must be a pair of input and label"
            )
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
                f"the input{part} of sample {index} of {self._name} is {kind_of(value)}; it must be a tensor or an array"
            )
        return self._tensor(value, index)

    def _label(self, value: Any, index: int, part: str = "") -> Tensor:
        if isinstance(value, int | np.integer):
            return torch.tensor(int(value))
        if isinstance(value, float | np.floating):
            return torch.tensor(float(value))
        if not isinstance(value, Tensor | np.ndarray):
            raise DataError(
                f"the label{part} of sample {index} of {self._name} is {kind_of(value)}; it must be a number, a tensor or an "
                "array"
            )
        return widened(self._tensor(value, index))

    def _tensor(self, value: Tensor | np.ndarray[Any, Any], index: int) -> Tensor:
        try:
            return torch.as_tensor(value)
        except TypeError as error:
            raise DataError(
                f"sample {index} of {self._name} holds an array that torch has no type for: {error}"
            ) from error

    def _stack(self, tensors: tuple[Tensor, ...], indices: list[int], part: str) -> Tensor:
        first = tensors[0]
        for tensor, index in zip(tensors, indices, strict=True):
            if tensor.shape != first.shape or tensor.dtype != first.dtype:
                raise DataError(
                    f"the {part} of sample {index} of {self._name} is {layout_of(tensor)}, that of sample {indices[0]} "
                    f"{layout_of(first)}; those of one batch must be alike"
                )
        return torch.stack(tensors)


def _named(inputs: Inputs) -> str:
    return f"the parts {', '.join(keys)}" if (keys := keys_of(inputs)) else "one tensor"


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
