"""A function of the user's own that makes a batch of items (`data.collate`), and the judge of what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_agent.data.described import kind_of, layout_of
from shared.errors import DataError
from shared.factory import load_factory
from shared.foreign import described, foreign_code, place_of
from shared.model.examples import length_of
from shared.model.inputs import Inputs, InputSpecs
from shared.training.losses import BatchLabels, widened

Stacked = tuple[Inputs, BatchLabels]
"""Inputs and labels of a batch."""


@dataclass(frozen=True)
class Collate:
    """A function that makes a batch of a list of items. Another process imports it again by its name.

    Raises DataError when there is no such function.
    """

    name: str
    """`package.module:function`."""
    longest: int | None = None
    """The greatest length of a batch; None where all have one."""
    example: InputSpecs | None = None
    """The kind of a batch that every batch must be of; None before there is any."""
    _function: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", load_factory(self.name, key="data.collate", error=DataError))

    def __reduce__(self) -> tuple[type["Collate"], tuple[str, int | None, InputSpecs | None]]:
        return Collate, (self.name, self.longest, self.example)

    def like(self, example: InputSpecs) -> "Collate":
        """Return the same function, whose inputs must all be of this kind, or shorter where they may be."""
        return replace(self, example=example)

    def __call__(self, items: list[Any]) -> Stacked:
        """Make the batch of some items. Integer labels are int64. Raises DataError for what is no batch of them."""

        def failure(cause: BaseException) -> DataError:
            place = f" ({place})" if (place := place_of(cause)) else ""
            return self._refusal(f"failed with {described(cause)}{place}")

        with foreign_code(failure):
            made = self._function(items)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise self._refusal(f"returned a value {kind_of(made)}; it must return a pair of inputs and labels")
        inputs = self._inputs(made[0], len(items))
        labels = self._labels(made[1], len(items))
        self._check_kind(InputSpecs.of(inputs))
        return inputs, labels

    def _inputs(self, value: Any, count: int) -> Inputs:
        if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
            return {name: self._part(one, f"inputs {name!r}", count) for name, one in value.items()}
        if isinstance(value, tuple) and value:
            return tuple(self._part(one, f"inputs {place}", count) for place, one in enumerate(value))
        return self._part(value, "inputs", count)

    def _labels(self, value: Any, count: int) -> BatchLabels:
        if isinstance(value, tuple) and value:
            return tuple(widened(self._part(one, f"labels {place}", count)) for place, one in enumerate(value))
        return widened(self._part(value, "labels", count))

    def _part(self, value: Any, what: str, count: int) -> Tensor:
        if not isinstance(value, Tensor | np.ndarray):
            raise self._refusal(f"returned {what} {kind_of(value)}; they must be a tensor or an array")
        try:
            tensor = torch.as_tensor(value)
        except TypeError as error:
            raise self._refusal(f"returned {what} that torch has no type for: {error}") from error
        if not tensor.dim() or len(tensor) != count:
            raise self._refusal(
                f"returned {what} {layout_of(tensor)} for {count} items; the first dimension must be that of the items"
            )
        return tensor

    def _check_kind(self, inputs: InputSpecs) -> None:
        length = length_of(inputs.specs)
        if self.longest is not None and length > self.longest:
            raise self._refusal(
                f"returned inputs of length {length}, and data.longest is {self.longest}; raise it, or let the function cut "
                "them"
            )
        if self.example is not None and not self._is_like(inputs, self.example, length):
            but = "the number of items" if self.longest is None else "the number of items and the length"
            raise self._refusal(
                f"returned {_described(inputs)}, and {_described(self.example)} for the first batch of data.train; the inputs "
                f"of all batches must be alike but for {but}"
            )

    def _is_like(self, inputs: InputSpecs, example: InputSpecs, length: int) -> bool:
        if inputs.names != example.names or len(inputs.specs) != len(example.specs):
            return False
        for spec, wanted in zip(inputs.specs, example.specs, strict=True):
            may_differ = (
                self.longest is not None and spec.shape[1:2] == (length,) and wanted.shape[1:2] == (self.longest,)
            )
            behind = 2 if may_differ else 1
            if (spec.dtype, len(spec.shape), spec.shape[behind:]) != (
                wanted.dtype,
                len(wanted.shape),
                wanted.shape[behind:],
            ):
                return False
        return True

    def _refusal(self, what: str) -> DataError:
        return DataError(f"data.collate: {self.name!r} {what}")


def _described(inputs: InputSpecs) -> str:
    parts = inputs.names or (range(len(inputs.specs)) if len(inputs.specs) > 1 else ("",))
    words = (f"{part} {layout_of(spec)}".strip() for part, spec in zip(parts, inputs.specs, strict=True))
    return f"inputs {', '.join(words)}"
