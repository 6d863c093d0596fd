"""Networks and data for measurements: features of a chosen size, and compute of a chosen duration on both sides.

`benchmarks.edge_cpu --against` has another version of this project import them, so they need nothing new of it.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from edge_agent.data import digits

DISTINCT_IMAGES = 256


class RandomImages(Dataset[tuple[Tensor, int]]):
    """Images and labels drawn once, at most `DISTINCT_IMAGES` of them again and again; loading one costs next to nothing.

    A longer run draws no more than a shorter one does: otherwise the drawing, which takes longer than a step's own work, is
    counted as the step's where two lengths of run are subtracted.
    """

    def __init__(self, samples: int = 128, size: int = 32, classes: int = 10) -> None:
        generator = torch.Generator().manual_seed(1)
        self._samples, distinct = samples, min(samples, DISTINCT_IMAGES)
        self._images = torch.randn(distinct, 3, size, size, generator=generator)
        self._labels: list[int] = torch.randint(classes, (distinct,), generator=generator).tolist()

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._images[index % len(self._labels)], self.label(index)

    def label(self, index: int) -> int:
        """The class alone, for whoever computes the loss and has no images."""
        return self._labels[index % len(self._labels)]


class CountedImages(RandomImages):
    """Random images, and a file of 8 bytes that says how many of them have been read."""

    def __init__(self, samples: int, file: str) -> None:
        super().__init__(samples)
        self._count = np.memmap(file, np.int64, "r+", shape=1)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self._count[0] += 1
        return super().__getitem__(index)


class RepeatedDigits:
    """The digits so often that an epoch, at whose end the pipeline drains, is longer than what is measured."""

    def __init__(self, copies: int) -> None:
        self._digits, self._copies = digits(), copies

    def __len__(self) -> int:
        return len(self._digits) * self._copies

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        return self._digits[index % len(self._digits)]


def two_convolutions(channels: int) -> nn.Sequential:
    """Two blocks with a feature of batch x channels x size x size floats between them."""
    edge = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU())
    cloud = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
    return nn.Sequential(edge, cloud)


SMALL_CNN_FEATURE = (16, 16, 16)
"""Channels, height and width of what crosses its cut: 0.5 MB a batch of 32."""


def small_cnn() -> nn.Sequential:
    """Two blocks of RGB images of 32 x 32, cheap to compute next to what their feature costs to send."""
    channels = SMALL_CNN_FEATURE[0]
    edge = nn.Sequential(nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU())
    cloud = nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return nn.Sequential(edge, cloud)


def wide_edge(channels: int) -> nn.Sequential:
    """Two blocks: the first keeps large activations for its backward and hands on a small feature."""
    edge = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
    )
    return nn.Sequential(edge, nn.Sequential(nn.Flatten(), nn.Linear(channels * 16, 10)))


def mobilenet() -> nn.Sequential:
    """Eighteen blocks of RGB images: MobileNetV2 with half its channels, whose layers lean on a device in different ways.

    With ISTHMUS_BENCHMARK_ONEDNN=off the process computes without oneDNN, for which torch has no variable of its own.
    """
    if os.environ.get("ISTHMUS_BENCHMARK_ONEDNN") == "off":
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
    blocks: list[nn.Module] = [stem]
    channels = 16
    for expansion, outputs, count, first_stride in (
        (1, 8, 1, 1),
        (6, 16, 2, 1),
        (6, 24, 3, 2),
        (6, 32, 4, 2),
        (6, 48, 3, 1),
        (6, 80, 3, 2),
    ):
        for stride in (first_stride, *[1] * (count - 1)):
            blocks.append(_InvertedResidual(channels, outputs, expansion, stride))
            channels = outputs
    head = nn.Sequential(
        nn.Conv2d(channels, 320, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10)
    )
    return nn.Sequential(*blocks, head)


class _InvertedResidual(nn.Module):
    """The block of MobileNetV2: wider by a factor, one filter a channel, narrow again."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self._adds = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, value: Tensor) -> Tensor:
        narrow: Tensor = self.layers(value)
        return value + narrow if self._adds else narrow


def timed_halves(
    compute: str, edge: tuple[float, float], cloud: tuple[float, float], feature_floats: int
) -> nn.Sequential:
    """Two blocks of one-pixel images whose forward and backward take as long as told.

    compute: what `Work` does. edge, cloud: its amounts in a forward and in a backward of that block.
    feature_floats: of one sample.
    """
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(3, feature_floats), Work(compute, *edge)),
        nn.Sequential(Work(compute, *cloud), nn.Linear(feature_floats, 10)),
    )


def timed_blocks(amounts: Sequence[tuple[float, float]], feature_floats: int | Sequence[int]) -> nn.Sequential:
    """Two blocks or more of one-pixel images, each of which sleeps for so many seconds forward and backward.

    feature_floats: of one sample, at each cut alike or at one after the other, never rising.
    """
    given = [feature_floats] if isinstance(feature_floats, int) else list(feature_floats)
    sizes = given * (len(amounts) - 1) if len(given) == 1 else given
    first, *middle, last = (Work("sleep", *each) for each in amounts)
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(3, sizes[0]), first),
        *(
            nn.Sequential(nn.AdaptiveAvgPool1d(size) if size < before else nn.Identity(), nn.LayerNorm(size), work)
            for before, size, work in zip(sizes, sizes[1:], middle, strict=False)
        ),
        nn.Sequential(last, nn.Linear(sizes[-1], 10)),
    )


def weighted_blocks(amounts: Sequence[tuple[float, float]], sizes: Sequence[int]) -> nn.Sequential:
    """Blocks of one-pixel images. Each sleeps for so many seconds forward and backward, and has weights of so many bytes.

    The gradient of a weight is zeros. The last block has the numbers of a small linear layer more.
    """
    blocks = [WeightedWork(*each, size) for each, size in zip(amounts, sizes, strict=True)]
    *front, last = blocks
    whole: list[nn.Module] = [*front, nn.Sequential(last, nn.Flatten(), nn.Linear(3, 10))]
    return nn.Sequential(*whole)


PACE = "ISTHMUS_BENCHMARK_PACE"
"""The variable that names a file with a number: what the device of a process takes of time, for what others sleep one second.
It may change while the process runs."""


WORKER = "ISTHMUS_BENCHMARK_WORKER"
"""The variable that names the worker of a process, for blocks that take other times on each."""


def sleep_at_pace(seconds: float) -> None:
    """Sleep for so long as this device is slow."""
    time.sleep(_at_pace(seconds))


@contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """Let what is done inside take so long as this device is slow, by sleep after it. What takes longer by itself does so."""
    begun = time.perf_counter()
    yield
    time.sleep(max(0.0, _at_pace(seconds) - (time.perf_counter() - begun)))


def _at_pace(seconds: float) -> float:
    file = os.environ.get(PACE)
    return seconds if file is None else seconds * float(Path(file).read_text())


class Work(nn.Module):
    """The identity, at a price: each forward and each backward of a training step waits or computes.

    compute: "sleep", amounts in seconds, or "matmul", amounts in matrix products of `MATMUL_SIZE`. Both let other Python
    threads run meanwhile, as torch's kernels do. Evaluation is free.
    """

    def __init__(self, compute: str, forward_amount: float, backward_amount: float) -> None:
        super().__init__()
        self._work = {"sleep": sleep_at_pace, "matmul": multiply}[compute]
        self._amounts = (forward_amount, backward_amount)

    def forward(self, value: Tensor) -> Tensor:
        """The value itself."""
        if not self.training:
            return value
        worked: Tensor = Priced.apply(value, self._work, *self._amounts)  # type: ignore[no-untyped-call]
        return worked


class WeightedWork(nn.Module):
    """The identity, at the price of seconds, with weights that learn nothing."""

    def __init__(self, forward_seconds: float, backward_seconds: float, size: int) -> None:
        super().__init__()
        self._seconds = forward_seconds, backward_seconds
        self.weight = nn.Parameter(torch.zeros(size // 4)) if size else None

    def forward(self, value: Tensor) -> Tensor:
        """The value itself."""
        if not self.training:
            return value
        worked: Tensor = _WeightedIdentity.apply(value, self.weight, *self._seconds)  # type: ignore[no-untyped-call]
        return worked


MATMUL_SIZE = 192
"""Rows and columns: a product takes a fraction of a millisecond, so that a count of them sets a duration."""
_matrix = torch.ones(MATMUL_SIZE, MATMUL_SIZE)


def multiply(count: float) -> None:
    """So many matrix products."""
    product = torch.empty_like(_matrix)
    for _ in range(round(count)):
        torch.mm(_matrix, _matrix, out=product)


class Priced(torch.autograd.Function):
    """The identity of a tensor, whose forward and backward do some work."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, work: Any, forward_amount: float, backward_amount: float) -> Tensor:
        """Do the work of the forward."""
        ctx.work, ctx.backward_amount = work, backward_amount
        work(forward_amount)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Do the work of the backward."""
        ctx.work(ctx.backward_amount)
        return gradients[0], None, None, None


class _WeightedIdentity(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weight: Tensor | None, forward_seconds: float, backward_seconds: float
    ) -> Tensor:
        ctx.weight, ctx.backward_seconds = weight, backward_seconds
        with lasting(forward_seconds):
            return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        with lasting(ctx.backward_seconds):
            return gradients[0], None if ctx.weight is None else torch.zeros_like(ctx.weight), None, None
