"""The network of `make demo-engine`, and the seconds that each of its blocks takes on the device that the demo plays.

The blocks learn the digits, which takes next to no time; a device computes as long as it is told besides. So the demo shows
the same on every machine, and several such devices fit on one.
"""

from torch import nn

from benchmarks.networks import Work

DEVICE_SECONDS = (0.006, 0.049, 0.055, 0.190)
"""A step of each block, forward and backward, while the device is as quick as at first."""


def slow_network() -> nn.Sequential:
    """Four blocks for the digits, N x 1 x 8 x 8. What passes between them is 384, 96 and 16 floats a sample."""
    layers = (
        _convolution(1, 24),
        _convolution(24, 24),
        nn.Sequential(nn.Flatten(), nn.Linear(96, 16), nn.ReLU()),
        nn.Linear(16, 10),
    )
    # A backward takes twice as long as a forward.
    works = [Work("sleep", seconds / 3, seconds * 2 / 3) for seconds in DEVICE_SECONDS]
    return nn.Sequential(*(nn.Sequential(layer, work) for layer, work in zip(layers, works, strict=True)))


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
