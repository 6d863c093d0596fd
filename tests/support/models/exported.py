"""Models whose export is not what they compute, or that have none."""

import torch
from torch import Tensor, nn


class _Otherwise(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) * (2.0 if torch.compiler.is_exporting() else 1.0)


class _Branching(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) if value.sum() > 0 else super().forward(-value)


class _Narrowing(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value.to(self.weight.dtype))


def narrow() -> nn.Module:
    """A model with weights of bfloat16."""
    return nn.Sequential(_Narrowing(64, 8), nn.ReLU(), nn.Linear(8, 10)).to(torch.bfloat16)


def otherwise() -> nn.Module:
    """A model that an exporter sees otherwise."""
    return nn.Sequential(nn.Linear(64, 8), _Otherwise(8, 10))


def branching() -> nn.Module:
    """A model whose way depends on the contents of a tensor."""
    return nn.Sequential(nn.Linear(64, 8), _Branching(8, 10))


def compiled() -> nn.Module:
    """A model in the wrapper of torch.compile, with a part that evaluates otherwise than it trains."""
    return torch.compile(nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 10)))
