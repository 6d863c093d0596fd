"""The network that workers on shares of a core train.

Most of its work is in convolutions of large images, so that its weights are few beside it.
"""

from itertools import pairwise

from torch import nn


def convolutions(width: int = 40) -> nn.Sequential:
    """Return five blocks for images of 32 x 32. width: channels of the second block and the third."""
    first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    return nn.Sequential(
        first,
        _pooled(4, width, width),
        _pooled(width, width, width, width),
        _pooled(width, 2 * width, width),
        nn.Sequential(nn.Flatten(), nn.Linear(16 * width, 10)),
    )


def _pooled(*channels: int) -> nn.Sequential:
    """Return convolutions from each number of channels to the next, and a pooling that halves height and width."""
    each = [nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.ReLU()) for before, after in pairwise(channels)]
    return nn.Sequential(*each, nn.MaxPool2d(2))
