"""New times of one worker: those of all its ranges of blocks, computed from the few that were timed again."""

from collections.abc import Mapping

import numpy as np

from edge_agent.planning import BlockRange
from edge_agent.planning.measurements import Floats
from edge_agent.planning.prediction import SHORTEST_SECONDS, ChangedDevice, contiguous, vector


class StageSamples:
    """The ranges of blocks of a worker that was measured when it was another device."""

    def __init__(self, seconds: Floats) -> None:
        """seconds: measured then, as in `WorkerProfile`."""
        blocks = len(seconds) - 1
        self._seconds = seconds
        self._runs = [run for run in contiguous(blocks) if np.isfinite(seconds[run])]
        layers = np.array([vector(*run, blocks) for run in self._runs], dtype=np.uint8)
        before = np.array([seconds[run] for run in self._runs]).clip(SHORTEST_SECONDS)
        self._device = ChangedDevice(layers, before)

    def ratios(self, samples: Mapping[BlockRange, float]) -> tuple[Floats, Floats]:
        """Return the ratio of each range's seconds today to those of then, and its standard deviation, as tables.

        samples: seconds of one range or more today. NaN stands where a range was never measured.
        """
        places = [self._runs.index(run) for run in samples]
        found = self._device.seconds(places, np.array(list(samples.values())))
        rows = tuple(np.array(self._runs).T)
        tables = []
        for each in found:
            table = np.full_like(self._seconds, np.nan)
            table[rows] = each / self._seconds[rows]
            tables.append(table)
        return tables[0], tables[1]
