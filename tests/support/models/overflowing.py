"""Models in which gradients of one block overflow at chosen steps, wherever the block is."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LARGE = 1e30
"""A gradient times this is finite in float32, in float16 no more, and twice in neither."""


class Overflowing(nn.Module):
    """A layer of which a gradient overflows in chosen forwards in training mode: that of its weights, or one at its input."""

    def __init__(self, width: int, forwards: Sequence[int], own: bool) -> None:
        """own: whether it is that of its weights, of which no other block knows."""
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.own = own
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))
        self.register_buffer("chosen", torch.tensor(forwards, dtype=torch.int64))
        self.register_buffer("first", torch.eye(width)[0])

    def forward(self, value: Tensor) -> Tensor:
        """[B, F] to [B, F]: the layer, and beside it a sum that is nothing with a gradient that is much."""
        factor = torch.where((self.chosen == self.done).any(), LARGE, 0.0)
        if self.training:
            self.done += 1
        if self.own:
            weights = self.layer.weight.sum()
            return self.layer(value).float() + (weights - weights.detach()) * factor * factor
        wide = value.float()
        return self.layer(wide + factor * self.first * (wide - wide.detach()))


def overflowing(
    block: int, forwards: Sequence[int], own: bool = False, inputs: int = 64, width: int = 16, classes: int = 10
) -> nn.Module:
    """Four blocks, of which this one overflows. block: 1 or 2. own: see `Overflowing`."""
    layers: list[nn.Module] = [nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Dropout(0.3))]
    layers += [
        nn.Sequential(Overflowing(width, forwards, own) if index == block else nn.Linear(width, width), nn.Tanh())
        for index in (1, 2)
    ]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def in_halves() -> nn.Module:
    """A model whose weights are in float16."""
    return nn.Sequential(nn.Linear(64, 16), nn.Linear(16, 10)).half()
