"""Models whose blocks get a gradient in some steps and none in others, as a plain loop has them: `grad` is None then."""

import torch
from torch import Tensor, nn


class Fickle(nn.Module):
    """A linear layer that in one step of three hands no gradient on, and uses one of two biases, as its input has it."""

    def __init__(self, width: int, outputs: int, turn: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)
        self.biases = nn.ParameterList([nn.Parameter(torch.full((outputs,), 0.1)) for _ in range(2)])
        self.never = nn.Parameter(torch.ones(outputs))
        self.turn = turn
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        """The layer, in training cut off from what comes before where it is its turn."""
        if self.training:
            self.calls += 1
            if int(self.calls) % 3 == self.turn:
                value = value.detach()
        bias = self.biases[int(value.detach().flatten()[0] > 0)]
        return torch.tanh(self.linear(value) + bias)


class Transposed(nn.Module):
    """The same vectors, the first numbers of all samples first in memory."""

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] with strides of 1 and B."""
        return value.t().contiguous().t()


def fickle() -> nn.Module:
    """Four blocks for vectors of 64."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 16), nn.Tanh(), Transposed()),
        Fickle(16, 16, turn=2),
        Fickle(16, 12, turn=0),
        nn.Linear(12, 10),
    )
