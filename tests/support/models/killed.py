"""A model whose first block ends its process in one training forward, as the kernel does where memory is short."""

import os
import signal

import torch
from torch import Tensor, nn


class Killed(nn.Module):
    """A layer that ends the process in its forward of this number, counted by its state."""

    def __init__(self, width: int, forward: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.last = forward
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] to [B, F]."""
        if self.training:
            if int(self.done) == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.done += 1
        return self.layer(value)


def killed(forward: int, inputs: int = 64, classes: int = 10) -> nn.Module:
    """Three blocks, of which the first one ends its process."""
    return nn.Sequential(
        Killed(inputs, forward), nn.Sequential(nn.ReLU(), nn.Linear(inputs, 32)), nn.Linear(32, classes)
    )
