"""A model that is built and verified without a word, and fails when it is trained or evaluated."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MADE_UP_SAMPLES = 8
"""More than a model is tried on with a graph before it is trained."""


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Tensor:
        raise RuntimeError("the backward is not\nwritten yet")


class Failing(nn.Module):
    """A linear layer that fails `when` told: in the "forward" or "backward" of a training, or in an "evaluation".

    A training that fails in a "kernel" has an index out of range, and on a GPU the process has no device any more.
    """

    def __init__(self, inputs: int, outputs: int, when: str | None) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.when = when
        self.trained = False

    def forward(self, value: Tensor) -> Tensor:
        value = self.linear(value)
        if torch.is_grad_enabled() and not value.is_meta and len(value) > _MADE_UP_SAMPLES:  # never while it is tried
            self.trained = True
            if self.when == "forward":
                raise RuntimeError("the forward is not\nwritten yet")
            if self.when == "kernel":
                value = value[torch.full((len(value),), len(value), device=value.device)]
            if self.when == "backward":
                value = _FailsBackward.apply(value)
        elif self.when == "evaluation" and self.trained:
            raise RuntimeError("the evaluation is not\nwritten yet")
        return value


def failing(block: int, when: str) -> nn.Module:
    """Three blocks, one of which fails."""
    sizes = (64, 16, 16, 10)
    return nn.Sequential(
        *(Failing(sizes[i], sizes[i + 1], when if i == block else None) for i in range(3)),
    )


def raising(block: int) -> nn.Module:
    """Four blocks, one of which raises whenever it is trained."""
    sizes = (64, 16, 16, 16, 10)
    return nn.Sequential(
        *(Failing(sizes[i], sizes[i + 1], "forward" if i == block else None) for i in range(4)),
    )


def normalised(outputs: int = 10) -> nn.Module:
    """Three blocks; the second, with batch norm, cannot be trained on a batch of one sample."""
    return nn.Sequential(
        nn.Linear(64, 16), nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), nn.Linear(16, outputs)
    )


def no_loss(_output: Tensor, _labels: Tensor) -> Tensor:
    """A loss that cannot be computed."""
    raise RuntimeError("the loss is not\nwritten yet")


def own_cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """A loss of a user's own, of which nobody else knows that labels are classes: it fails where a sample has another one."""
    return F.cross_entropy(output, labels)
