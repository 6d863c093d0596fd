"""A model with adapters: wide layers that do not learn, each with a correction of low rank that does."""

import itertools

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

_MADE = itertools.count()
LEARNS = 'model.learns=["*lora_*", "3"]'
"""The adapters and the last layer."""


class Adapted(nn.Module):
    """A linear layer with an adapter."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.lora_a, self.lora_b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        """The layer and its correction."""
        return (self.base(value) + self.lora_b(self.lora_a(value))).relu()


def adapted(width: int = 64, rank: int = 2) -> nn.Module:
    """Three layers with adapters, and one that learns as a whole."""
    return nn.Sequential(*(Adapted(width, rank) for _ in range(3)), nn.Linear(width, 10))


def drawn_anew(width: int = 64, rank: int = 2) -> nn.Module:
    """The same with other weights each time that it is made, as where a file with them is on one machine alone."""
    torch.manual_seed(next(_MADE))
    return adapted(width, rank)


def on_a_body(width: int, rank: int = 1, start: str | None = None) -> nn.Module:
    """A wide layer, two with adapters, and one of few outputs, whose frozen weights are many times the adapters'.

    It is drawn anew each time that it is made. start: the file of its first weights.
    """
    torch.manual_seed(next(_MADE))
    body = nn.Sequential(nn.Linear(64, width), Adapted(width, rank), Adapted(width, rank), nn.Linear(width, 10))
    if start is not None:
        body.load_state_dict(load_file(start))
    return body
