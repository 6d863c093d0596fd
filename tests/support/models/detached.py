"""A model whose last block passes no gradient on to the one before it."""

from torch import Tensor, nn


class Detached(nn.Linear):
    """A linear layer that learns, and from which nothing before it does."""

    def forward(self, value: Tensor) -> Tensor:
        """The layer of a value that is cut off from what made it."""
        return super().forward(value.detach())


def detached() -> nn.Module:
    """Three blocks for vectors of 64."""
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), Detached(16, 10))
