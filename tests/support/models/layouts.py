"""Models whose tensors lie in memory in ways that a dense one does not."""

import torch
from torch import Tensor, nn


class Windows(nn.Module):
    """Half-precision windows that overlap in memory, of a vector."""

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] to [B, windows, 8]."""
        return value.half().unfold(1, 8, 4)


class Gathered(nn.Module):
    """The windows' means in single precision."""

    def forward(self, value: Tensor) -> Tensor:
        """[B, windows, 8] to [B, windows]."""
        return value.float().mean(2)


class Widened(nn.Module):
    """A vector beside many constants: the gradient of the vector is a narrow part of a wide one."""

    def __init__(self, constants: int) -> None:
        super().__init__()
        self.constants = constants

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] to [B, F + constants]."""
        return torch.cat([value, torch.ones_like(value[:, :1]).expand(-1, self.constants)], 1)


def windows() -> nn.Module:
    """Cut at 2, overlapping windows in half precision cross."""
    return nn.Sequential(nn.Linear(64, 64), Windows(), Gathered(), nn.Linear(15, 10))


def widened(constants: int = 20_000) -> nn.Module:
    """Cut at 1, the gradient that comes back has gaps that are far larger than itself."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 16), nn.ReLU()),
        nn.Sequential(Widened(constants), nn.Linear(16 + constants, 10)),
    )
