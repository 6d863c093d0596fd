"""A metric: a number that one worker, or several, compute of the outputs and labels of all samples of an evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from shared.errors import ModelError

Value = Tensor | tuple[Tensor, ...]
"""The one tensor, or all of them where the last block or the labels have several."""
State = Mapping[str, Tensor]


class Metric(Protocol):
    """One metric in one evaluation."""

    def update(self, output: Value, labels: Value) -> object:
        """Count a batch, or a part of one. They are as the loss takes them, and want no gradient."""

    def state(self) -> State:
        """Return what was counted, in as few numbers as it takes. Several workers that judge send theirs to one."""

    def merge(self, states: Sequence[State]) -> object:
        """Go on from the states of all workers that have judged, where nothing was counted."""

    def value(self) -> float:
        """Return the number for all that was counted."""


class Sums:
    """A metric whose state is sums over samples, so that those of parts add up."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, **parts: Tensor | float) -> None:
        """Add to the sums, in float64."""
        for name, part in parts.items():
            more = torch.as_tensor(part, dtype=torch.float64)
            self._sums[name] = self._sums[name] + more if name in self._sums else more

    def sums(self, *names: str) -> list[Tensor]:
        """Return sums by their names, on the host."""
        return [self._sums.get(name, torch.zeros((), dtype=torch.float64)).cpu() for name in names]

    def state(self) -> State:
        """Return the sums."""
        return self._sums

    def merge(self, states: Sequence[State]) -> None:
        """Add the sums of all."""
        for state in states:
            self.add(**state)


def as_number(given: Any) -> float:
    """Return a number that foreign code has computed. Raises ModelError for anything else."""
    if isinstance(given, Tensor):
        if given.numel() != 1:
            raise ModelError(f"gives a tensor {tuple(given.shape)}; it must give one number, as the mean of a batch")
        given = given.item()
    if not isinstance(given, int | float):
        raise ModelError(f"gives {type(given).__name__}; it must give one number")
    return float(given)
