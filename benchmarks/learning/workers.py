"""Trials several at a time, each in a process that opens the images once."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from benchmarks.learning.images import Images, channel_norm, read_split
from benchmarks.learning.plan import Trial
from benchmarks.learning.results import Result
from benchmarks.learning.trial import run_trial
from benchmarks.support.pooled import run_pooled


def run_trials(
    trials: Iterable[Trial], data: Path, train_samples: int, device: str, workers: int, stop_seconds: float
) -> Iterator[Result]:
    """Results as they come.

    data: the archive of images. device: torch's name of it. stop_seconds: after which no further training starts.
    """
    return run_pooled(trials, _run, workers, stop_seconds, _open, data, train_samples, device)


_opened: dict[str, tuple[Images, Images, torch.device]] = {}
"""Data that a worker opens once for all its trainings: the training set, the test set and the device."""


def _open(data: Path, train_samples: int, device_name: str) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # so that fp32 means the same on every device
    device = torch.device(device_name)
    pixels_NCHW, labels_N = read_split(data, "train", train_samples)
    norm = channel_norm(pixels_NCHW)
    train = Images(pixels_NCHW, labels_N, norm, device)
    _opened["data"] = train, Images(*read_split(data, "test"), norm, device), device


def _run(trial: Trial) -> Result:
    return run_trial(trial, *_opened["data"])
