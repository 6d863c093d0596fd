"""Small data that is only iterated, for tests that are about something else."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from tests.support.samples import FlatDigits


class DigitsInTurn(IterableDataset[tuple[Tensor, int]]):
    """The digits as vectors, in an order that is drawn with noise as they are iterated; fewer than an epoch is to have."""

    def __init__(self, count: int = 1000) -> None:
        self._digits = FlatDigits()
        self._count = count

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in torch.randperm(len(self._digits))[: self._count].tolist():
            vector, label = self._digits[index]
            yield vector + random.random() / 8, label


class DigitsByState(DigitsInTurn):
    """The same in an order of the epoch alone, with a state as a dataset of Hugging Face has it."""

    drawn = 0
    """Samples that this process has drawn."""

    def __init__(self, count: int = 1000) -> None:
        super().__init__(count)
        self._state = self._loaded = {"epoch": 0, "place": 0}

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration begin in the order of this epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        begin = self._loaded["place"] if self._loaded["epoch"] == self._epoch else 0
        order = torch.randperm(len(self._digits), generator=torch.Generator().manual_seed(self._epoch))
        for place, index in enumerate(order[begin : self._count].tolist(), begin):
            self._state = {"epoch": self._epoch, "place": place + 1}
            DigitsByState.drawn += 1
            vector, label = self._digits[index]
            yield vector + random.random() / 8, label

    def state_dict(self) -> dict[str, int]:
        """Tell the place of the iterator."""
        return self._state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Have each iteration of the state's epoch begin there."""
        self._loaded = state
