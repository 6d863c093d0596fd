"""New times of one stage of a chain: which runs of blocks to measure, and what all its runs take by them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shared.planning.measurements import Floats
from shared.prediction import SHORTEST_SECONDS, ChangedDevice, contiguous, vector

Run = tuple[int, int]
"""The blocks [first, stop)."""


def runs_to_measure(seconds: Floats, today: Run) -> list[Run]:
    """The runs that tell most about a stage, first of all the one that it has today. seconds: see `WorkerProfile`."""
    stage = _Stage.of(seconds)
    return [stage.runs[place] for place in stage.device.most_telling(stage.runs.index(today))]


def seconds_by(samples: Mapping[Run, float], seconds: Floats) -> Floats:
    """What each run of a stage takes by the seconds of these; NaN where nothing was measured before."""
    stage = _Stage.of(seconds)
    places = [stage.runs.index(run) for run in samples]
    table = np.full_like(seconds, np.nan)
    table[tuple(np.array(stage.runs).T)] = stage.device.seconds(places, np.array(list(samples.values())))
    return table


class _Stage(NamedTuple):
    runs: list[Run]
    """Those that were measured."""
    device: ChangedDevice

    @classmethod
    def of(cls, seconds: Floats) -> "_Stage":
        blocks = len(seconds) - 1
        runs = [run for run in contiguous(blocks) if np.isfinite(seconds[run])]
        layers = np.array([vector(*run, blocks) for run in runs], dtype=np.uint8)
        return cls(runs, ChangedDevice(layers, np.array([seconds[run] for run in runs]).clip(SHORTEST_SECONDS)))
