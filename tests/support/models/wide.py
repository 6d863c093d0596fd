"""A model and a dataset of 64-bit numbers."""

import torch
from torch import Tensor, nn

from tests.support.samples import FlatDigits


class WideDigits(FlatDigits):
    """The digits as vectors of 64 numbers of float64."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        vector, label = super().__getitem__(index)
        return vector.double(), label


def wide() -> nn.Module:
    """Two blocks of float64."""
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).to(torch.float64)
