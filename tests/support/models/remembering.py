"""A model whose blocks remember something that a state dict leaves out."""

import torch
from torch import Tensor, nn


class Remembering(nn.Linear):
    """A linear layer that takes a running mean from its inputs and counts its trainings in non-persistent buffers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mean", torch.zeros(inputs), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        """The layer of what is new in the input."""
        if self.training:
            self.mean.lerp_(value.detach().mean(0), 0.1)
            self.seen.add_(1)
        return super().forward(value - self.mean).tanh()


def remembering(width: int = 16) -> nn.Module:
    """Three blocks for vectors of 64."""
    return nn.Sequential(nn.Linear(64, width), Remembering(width, width), Remembering(width, 10))
