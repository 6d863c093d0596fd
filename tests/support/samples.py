"""Small data sets for tests that are about something else."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from edge_agent.data import TensorDataset


class Sequences:
    """Token sequences with a class each, drawn from a fixed seed."""

    def __init__(self, samples: int = 200, length: int = 12, vocabulary: int = 50, classes: int = 4) -> None:
        generator = torch.Generator().manual_seed(5)
        self._tokens = torch.randint(vocabulary, (samples, length), generator=generator)
        self._labels = torch.randint(classes, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._tokens[index], int(self._labels[index])


class NextTokens:
    """Token sequences with the token after each as its label; the last few count for nothing."""

    def __init__(self, samples: int = 200, length: int = 12, vocabulary: int = 20) -> None:
        generator = torch.Generator().manual_seed(6)
        self._tokens = torch.randint(vocabulary, (samples, length + 1), generator=generator)
        self._padding = torch.randint(length // 2, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        labels = self._tokens[index, 1:].clone()
        labels[len(labels) - int(self._padding[index]) :] = -100
        return self._tokens[index, :-1], labels


class FlatDigits:
    """The digits as vectors of 64."""

    def __init__(self, split: str = "train") -> None:
        from edge_agent.data import digits

        self._digits = digits(split)

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._digits[index]
        return image.reshape(-1), label


class SomeDigits(FlatDigits):
    """Some of the digits of the test set, others for each rank."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__("test")
        self._rank = rank

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__(60 * self._rank + index)


class SortedDigits(FlatDigits):
    """Class after class."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self._order = sorted(range(len(self)), key=lambda index: super(SortedDigits, self).__getitem__(index)[1])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__(self._order[index])


class Counting(FlatDigits):
    """Becomes brighter each time that one is read."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self._reads = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self._reads += 1
        image, label = super().__getitem__(index)
        return image + self._reads, label


class Pictures(FlatDigits):
    """The digits as they are, or the first of them."""

    def __init__(self, split: str = "train", count: int | None = None) -> None:
        super().__init__(split)
        self._count = len(self._digits) if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._digits[index]


class PartlyLabelled(FlatDigits):
    """The digits as they are, of which some have no label: of the first samples fewer than of the last."""

    def __init__(self, split: str = "train", *, flat: bool = False) -> None:
        super().__init__(split)
        self._flat = flat

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index) if self._flat else self._digits[index]
        return image, -100 if index * index % len(self) > index else label


class MarkedDigits(FlatDigits):
    """The digits as they are, whose labels are the digit, and the share of its light in each quarter."""

    def __getitem__(self, index: int) -> tuple[Tensor, tuple[int, Tensor]]:  # type: ignore[override]
        image, label = self._digits[index]
        quarters = functional.avg_pool2d(image, 4).flatten()
        return image, (label, quarters / quarters.sum())


class ElseMarkedDigits(FlatDigits):
    """The digits as they are, whose labels are as many numbers as they are told."""

    def __init__(self, tensors: int, split: str = "train") -> None:
        super().__init__(split)
        self._tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, tuple[int, ...]]:  # type: ignore[override]
        image, label = self._digits[index]
        return image, (label,) * self._tensors


class OneHotDigits(FlatDigits):
    """Their labels as ten numbers each."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        vector, label = super().__getitem__(index)
        return vector, torch.eye(10)[label]


class Breaking(FlatDigits):
    """Raises at one of its samples."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 700:
            raise OSError("the card was pulled out")
        return super().__getitem__(index)


class NotANumber(FlatDigits):
    """Has no number in any sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return image * float("nan"), label


_TAKES_TIME = ContextVar("_TAKES_TIME", default=True)


@contextmanager
def quickly() -> Iterator[None]:
    """Have `Slow` take no time meanwhile, or in the function: a loop with which a run is compared is steered by nobody."""
    token = _TAKES_TIME.set(False)
    try:
        yield
    finally:
        _TAKES_TIME.reset(token)


class Slow(FlatDigits):
    """Takes its time with every fourth sample, but where it is read `quickly`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index % 4 == 0 and _TAKES_TIME.get():
            time.sleep(self._seconds)
        return super().__getitem__(index)


class FewDigits(FlatDigits):
    """The first of them only."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __len__(self) -> int:
        return self._count


class Torn(FewDigits):
    """Some of its samples cannot be read."""

    def __init__(self, count: int = 1437) -> None:
        super().__init__(count)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index % 97 == 5:
            raise OSError(f"photos/{index}.png is torn")
        return super().__getitem__(index)


class WitnessedDigits(FewDigits):
    """Leaves a file in a folder for each process that reads them."""

    def __init__(self, folder: str, count: int = 96) -> None:
        super().__init__(count)
        self._folder = Path(folder)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        (self._folder / str(os.getpid())).touch()
        return super().__getitem__(index)


def sums(samples: int = 64) -> TensorDataset:
    """A regression: vectors of 64, and a small part of their sum as a number each."""
    values = torch.rand(samples, 64, generator=torch.Generator().manual_seed(3))
    return TensorDataset(values, values.sum(1) / 64)


class PlainSums:
    """The same as Python's own numbers."""

    def __init__(self) -> None:
        self._sums = sums()

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        value, label = self._sums[index]
        return value, float(label)


class Mislabelled(FlatDigits):
    """Every sample from the `first` on has a label that the model has no output for."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        vector, label = super().__getitem__(index)
        return vector, label if index < self._first else 10


class ColumnLabels(FlatDigits):
    """Labels with one dimension too many, as of a column that was not squeezed."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        vector, label = super().__getitem__(index)
        return vector, torch.tensor([label])


class Itself(FlatDigits):
    """Samples for an autoencoder: each is its own label."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        vector, _ = super().__getitem__(index)
        return vector, vector.clone()


class Mixtures(FlatDigits):
    """Labels of the samples' own shape, each number of which is a mixture of all numbers of the sample."""

    def __init__(self) -> None:
        super().__init__()
        self._mixing = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) / 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        vector, _ = super().__getitem__(index)
        return vector, vector @ self._mixing


class Masked(Sequences):
    """The sequences by name, with a mask of what counts."""

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:  # type: ignore[override]
        tokens, label = super().__getitem__(index)
        return {"input_ids": tokens, "attention_mask": tokens > 3}, label


class Purchases(Sequences):
    """A token and some more as two inputs."""

    def __getitem__(self, index: int) -> tuple[tuple[int, Tensor], int]:  # type: ignore[override]
        tokens, label = super().__getitem__(index)
        return (int(tokens[0]), tokens[1:4]), label


class OtherKeys(Masked):
    """One of them with another key."""

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:  # type: ignore[override]
        inputs, label = super().__getitem__(index)
        return ({**inputs, "mask": inputs["input_ids"]} if index == 3 else inputs), label


class Words(Sequences):
    """The sequences, each of a length of its own, as a dictionary of what a tokeniser would return."""

    def __init__(self, samples: int = 200, longest: int = 12, vocabulary: int = 50) -> None:
        super().__init__(samples, longest, vocabulary)
        self._lengths = torch.randint(2, longest + 1, (samples,), generator=torch.Generator().manual_seed(7))

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:  # type: ignore[override]
        tokens, label = super().__getitem__(index)
        return {"input_ids": tokens[: int(self._lengths[index])], "label": label}
