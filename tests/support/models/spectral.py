"""A model with complex numbers between two of its blocks."""

import torch
from torch import Tensor, nn


class Spectrum(nn.Module):
    """The amplitudes of a signal, with their phases."""

    def forward(self, value: Tensor) -> Tensor:
        """Complex numbers, half as many as the signal has."""
        return torch.fft.rfft(value)


class Magnitude(nn.Module):
    """Amplitudes alone."""

    def forward(self, value: Tensor) -> Tensor:
        """Real numbers."""
        return value.abs()


def spectral() -> nn.Module:
    """Four blocks for vectors of 64, with complex numbers between the second and the third."""
    return nn.Sequential(nn.Linear(64, 64), Spectrum(), Magnitude(), nn.Linear(33, 10))
