"""Networks and data for measurements: a feature of a chosen size, and compute on both sides of it."""

import torch
from torch import Tensor, nn


class RandomImages:
    """Images and labels drawn once; loading one costs next to nothing."""

    def __init__(self, samples: int = 128, size: int = 32, classes: int = 10) -> None:
        generator = torch.Generator().manual_seed(1)
        self._images = torch.randn(samples, 3, size, size, generator=generator)
        self._labels = torch.randint(classes, (samples,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._images[index], self._labels[index]


def two_convolutions(channels: int) -> nn.Sequential:
    """Two blocks with a feature of batch x channels x size x size floats between them."""
    edge = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU())
    cloud = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
    return nn.Sequential(edge, cloud)
