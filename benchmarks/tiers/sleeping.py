"""A model whose blocks sleep as long as a profile of three tiers says, with its features and weights."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from benchmarks.networks import WORKER, lasting
from edge_agent.planning import Profile

FLOAT_BYTES, CLASSES_AT_LEAST, DISTINCT = 4, 2, 64
Lines = Sequence[Sequence[float]]
"""By block: seconds, and seconds for each sample."""


class RandomVectors(Dataset[tuple[Tensor, int]]):
    """Vectors and labels drawn once, `DISTINCT` of them again and again."""

    def __init__(self, samples: int, floats: int, classes: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._samples = samples
        self._vectors = torch.randn(DISTINCT, floats, generator=generator)
        self._labels: list[int] = torch.randint(classes, (DISTINCT,), generator=generator).tolist()

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._vectors[index % DISTINCT], self._labels[index % DISTINCT]


class SleepingBlock(nn.Module):
    """A block that hands on so many numbers of a sample and has so many weights. While it trains, its forward and its backward
    take so long by its samples, of which it sleeps what its arithmetic leaves."""

    def __init__(self, floats: int, weights: int, forward: Sequence[float], backward: Sequence[float]) -> None:
        super().__init__()
        self._floats, self._lines = floats, (tuple(forward), tuple(backward))
        self.weights = nn.Parameter(torch.zeros(weights))

    def forward(self, value: Tensor) -> Tensor:
        """Return the numbers again and again, or the first of them, after the seconds."""
        seconds = [constant + each * len(value) if self.training else 0.0 for constant, each in self._lines]
        handed_on: Tensor = _Resized.apply(value, self.weights, self._floats, *seconds)  # type: ignore[no-untyped-call]
        return handed_on


class _Resized(torch.autograd.Function):
    """A sample's numbers again and again, or the first of them, with the mean of the weights added."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weights: Tensor, floats: int, forward_seconds: float, backward_seconds: float
    ) -> Tensor:
        with lasting(forward_seconds):
            ctx.there, ctx.weights, ctx.backward_seconds = value.shape[1], len(weights), backward_seconds
            return value.repeat(1, -(-floats // ctx.there))[:, :floats] + weights.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        with lasting(ctx.backward_seconds):
            (gradient,) = gradients
            padded = functional.pad(gradient, (0, -gradient.shape[1] % ctx.there))
            of_value = padded.view(len(padded), -1, ctx.there).sum(1)
            of_weights = (gradient.sum() / ctx.weights).expand(ctx.weights).clone()
            return of_value, of_weights, None, None, None


def sleeping_blocks(
    floats: Sequence[int], weights: Sequence[int], seconds: Mapping[str, Mapping[str, Lines]]
) -> nn.Sequential:
    """Return the blocks. floats: of a sample after each. seconds: forward and backward, by worker, which a variable names."""
    own = seconds.get(os.environ.get(WORKER, "")) or dict.fromkeys(("forward", "backward"), [(0.0, 0.0)] * len(floats))
    return nn.Sequential(
        *(SleepingBlock(*each) for each in zip(floats, weights, own["forward"], own["backward"], strict=True))
    )


def flags_of(profile: Profile) -> list[str]:
    """Return an agent's flags for the model of a profile. Updates take what they take: the profile's times of them are not
    slept."""
    costs = profile.by_samples
    assert costs is not None
    inputs, *floats = (max(1, round(size / FLOAT_BYTES)) for size in costs.feature_bytes)
    floats[-1] = max(CLASSES_AT_LEAST, floats[-1])
    weights = [max(1, round(size / FLOAT_BYTES)) for size in costs.weight_bytes]
    seconds = {
        name: {"forward": [list(one.forward) for one in blocks], "backward": [list(one.backward) for one in blocks]}
        for name, blocks in costs.blocks.items()
    }
    data = {"samples": profile.batch_size * 10_000, "floats": inputs, "classes": floats[-1]}
    return [
        'model.factory="benchmarks.tiers.sleeping:sleeping_blocks"',
        f"model.kwargs={_toml({'floats': floats, 'weights': weights, 'seconds': seconds})}",
        f'data.train={{factory="benchmarks.tiers.sleeping:RandomVectors", kwargs={_toml(data)}}}',
        f"data.batch_size={profile.batch_size}",
        f"data.ahead={profile.samples_ahead}",
        "training.epochs=1000",
        "training.evaluate_every_epochs=0",
    ]


def _toml(value: Any) -> str:
    """Write numbers, lists and tables as TOML has them on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
