"""Tuning the cut, bits and K with one trainer, by the cost model and later measurements.

A profile is some percent off, and a climb by one block a time stays where its two neighbours are slower. So the model orders
the trials: the times of both workers at the cuts that were tried correct it at all others.
"""

import numpy as np

from edge_agent.planning.cost import Conditions, Slower
from edge_agent.planning.families.pair import Pairs
from edge_agent.planning.measurements import Floats


class Tuning:
    """Costs of the layouts with one trainer, corrected by measurements."""

    def __init__(self, pairs: Pairs, margin: float) -> None:
        """margin: part of the time per step by which another layout must lead."""
        self._pairs = pairs
        self._margin = margin
        self._work_ratios: dict[int, dict[int, float]] = {0: {}, 1: {}}
        self._misfits: dict[int, float] = {}

    def record(self, row: int, at: Conditions, work_seconds: tuple[float, float], step_seconds: float) -> None:
        """Enter the measurements of a layout.

        at: of one trainer. work_seconds: of a step's computing and encoding, on the device and on the trainer.
        """
        cut = int(self._pairs.cuts[row])
        for place, seconds in enumerate(work_seconds):
            foreseen = float(self._pairs.loads.work[place][row] * at.factors[place])
            if foreseen > 0.0:
                self._work_ratios[place][cut] = seconds / foreseen
        self._misfits.pop(row, None)
        self._misfits[row] = step_seconds / float(self.seconds(at)[row])

    def seconds(self, at: Conditions) -> Floats:
        """Return the seconds a step of each layout, the device alone among them, shape (n,)."""
        seconds = self._pairs.loads.seconds(at, self._slower())
        for row, misfit in self._misfits.items():
            seconds[row] *= misfit
        return seconds

    def choose(self, row: int, at: Conditions) -> int:
        """Return the best layout, or today's where none leads it by the margin."""
        seconds = self.seconds(at)
        best = int(np.argmin(seconds))
        return best if seconds[best] <= (1.0 - self._margin) * seconds[row] else row

    def _slower(self) -> Slower:
        """Return each worker's factor at every cut: between those that were tried in a straight line, beyond them the same."""
        cuts = self._pairs.cuts
        slower: dict[int | tuple[int, int], float | Floats] = {}
        for place, ratios in self._work_ratios.items():
            if ratios:
                tried = sorted(ratios)
                slower[place] = np.interp(cuts, tried, [ratios[cut] for cut in tried])
        return slower
