"""Models that take as long as they are told, wherever they run."""

import os
import time
from pathlib import Path

from torch import Tensor, nn

CALLS = 0
"""Forwards of a paced block in this process, but those that verify a model."""


class Paced(nn.Module):
    """A linear layer that takes its time once it is trained or measured."""

    def __init__(self, inputs: int, outputs: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.seconds = seconds

    def forward(self, value: Tensor) -> Tensor:
        global CALLS
        if value.requires_grad and not value.is_meta:  # never while a chain is verified, or its memory estimated
            CALLS += 1
            time.sleep(self.seconds)
        return self.linear(value)


def paced(seconds: float) -> nn.Module:
    """Three blocks; the last takes so long in a forward that learns."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 16), Paced(16, 10, seconds))


def slow_to_build(seconds: float) -> nn.Module:
    """Three blocks whose factory is busy for so long of this machine's time, in Python alone."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return paced(0.0)


class PacedBySample(nn.Module):
    """A linear layer that takes its time for each sample in every forward, the first of a replay too."""

    def __init__(self, inputs: int, outputs: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.seconds = seconds

    def forward(self, value: Tensor) -> Tensor:
        if not value.is_meta:  # never while a chain is verified, or its memory estimated
            time.sleep(len(value) * self.seconds)
        return self.linear(value)


def paced_by_sample(seconds: float) -> nn.Module:
    """Three blocks; the second takes so long a sample in a forward."""
    return nn.Sequential(nn.Linear(64, 32), PacedBySample(32, 16, seconds), nn.Linear(16, 10))


class PacedByProcess(nn.Module):
    """A linear layer that takes as long as a file says whose name is the number of this process, or no time without one."""

    def __init__(self, inputs: int, outputs: int, folder: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.file = Path(folder) / str(os.getpid())

    def forward(self, value: Tensor) -> Tensor:
        if value.requires_grad and not value.is_meta and self.file.exists():
            time.sleep(float(self.file.read_text()))
        return self.linear(value)


def paced_by_process(folder: str) -> nn.Module:
    """Four blocks; the last takes as long as the process that runs it is told to."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, 16), PacedByProcess(16, 10, folder))
