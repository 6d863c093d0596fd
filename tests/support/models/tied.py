"""A model with tied weights: two layers of one block share their matrix."""

from torch import Tensor, nn


class TiedPair(nn.Module):
    """A hidden layer whose output layer has the hidden layer's own matrix, and a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, value: Tensor) -> Tensor:
        """The pair, each with a nonlinearity."""
        return self.second(self.norm(self.first(value)).relu()).relu()


def tied(width: int = 24) -> nn.Module:
    """Four blocks for vectors of 64, the two in the middle with tied weights."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, width), nn.ReLU()), TiedPair(width), TiedPair(width), nn.Linear(width, 10)
    )
