"""A model as large as a peer wants it."""

from torch import nn


def many(count: int) -> nn.Module:
    """So many modules that take no memory of tensors."""
    return nn.Sequential(nn.Linear(64, 10), *[nn.ReLU() for _ in range(count)])
