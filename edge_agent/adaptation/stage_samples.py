"""New times of one stage of a chain: the runs of blocks to measure, and the times of all its runs computed from them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shared.planning.measurements import Floats
from shared.prediction import SHORTEST_SECONDS, ChangedDevice, contiguous, vector

BlockRange = tuple[int, int]
"""Blocks [first, stop)."""


def runs_to_measure(seconds: Floats, today: BlockRange) -> list[BlockRange]:
    """Choose the runs that tell most about a stage, its present one first. seconds: see `WorkerProfile`."""
    stage = _Stage.of(seconds)
    return [stage.runs[place] for place in stage.device.most_telling(stage.runs.index(today))]


def seconds_by(samples: Mapping[BlockRange, float], seconds: Floats) -> Floats:
    """Compute the seconds of each run of a stage from these samples; NaN if it was never measured before."""
    stage = _Stage.of(seconds)
    places = [stage.runs.index(run) for run in samples]
    table = np.full_like(seconds, np.nan)
    table[tuple(np.array(stage.runs).T)] = stage.device.seconds(places, np.array(list(samples.values())))
    return table


class _Stage(NamedTuple):
    runs: list[BlockRange]
    """Measured runs."""
    device: ChangedDevice

    @classmethod
    def of(cls, seconds: Floats) -> "_Stage":
        blocks = len(seconds) - 1
        runs = [run for run in contiguous(blocks) if np.isfinite(seconds[run])]
        layers = np.array([vector(*run, blocks) for run in runs], dtype=np.uint8)
        return cls(runs, ChangedDevice(layers, np.array([seconds[run] for run in runs]).clip(SHORTEST_SECONDS)))
