"""Models whose first blocks pass on what samples can be read off, for flat digits of 64 numbers."""

from torch import Tensor, nn


class _Declared(nn.Module):
    """Says its blocks itself."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*blocks)

    def blocks(self) -> list[nn.Module]:
        return list(self.parts)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.parts(value)
        return result


def flattened() -> nn.Module:
    """A first block that passes on its input as it is."""
    return _Declared(nn.Flatten(), nn.Linear(64, 10))


def normalised() -> nn.Module:
    """A first block that normalises each number by itself."""
    return nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
