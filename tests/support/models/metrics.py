"""Metrics of a user's own."""

import torch
from torch import Tensor


def first_class(output: Tensor, _labels: Tensor, of: int = 0) -> Tensor:
    """The share of samples that are taken for one class."""
    return (output.argmax(1) == of).float().mean()


def of_no_number(output: Tensor, _labels: Tensor) -> Tensor:
    """Not one number."""
    return output.sum(0)


class Spread:
    """The greatest output, less the least: an extreme and no sum."""

    def __init__(self, times: float = 1.0) -> None:
        self._times = times
        self._ends: list[Tensor] = []

    def update(self, output: Tensor, _labels: Tensor) -> None:
        self._ends.append(torch.stack(output.aminmax()))

    def state(self) -> dict[str, Tensor]:
        return {"ends": torch.stack(self._ends)} if self._ends else {}

    def merge(self, states: list[dict[str, Tensor]]) -> None:
        self._ends = [state["ends"].reshape(-1) for state in states if state]

    def value(self) -> float:
        ends = torch.cat([each.reshape(-1) for each in self._ends])
        return self._times * float(ends.max() - ends.min())


class Stateless(Spread):
    """Has a state that is no dictionary."""

    def state(self) -> Tensor:  # type: ignore[override]
        return torch.zeros(2)


class Fails:
    """Fails at the second batch."""

    def __init__(self) -> None:
        self._batches = 0

    def update(self, _output: Tensor, _labels: Tensor) -> None:
        self._batches += 1
        if self._batches == 2:
            raise ValueError("two are too many")

    def state(self) -> dict[str, Tensor]:
        return {}

    def merge(self, states: list[dict[str, Tensor]]) -> None:
        pass

    def value(self) -> float:
        return 0.0


class Unfinished:
    """Has not all methods."""

    def update(self, output: Tensor, labels: Tensor) -> None:
        pass


class Everything(Spread):
    """Keeps more than it needs."""

    def state(self) -> dict[str, Tensor]:
        return {"all": torch.zeros(len(self._ends) * 9000), **super().state()}
