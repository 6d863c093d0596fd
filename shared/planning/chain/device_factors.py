"""Factors of today's stages: each tells how much slower than measured a stage is.

A stage that is off by more than a tenth in two consecutive windows of 20 steps has become another device. Its factor is
then that of the second window. A smaller or shorter difference is noise, and changes nothing. A stage that is off again
despite its factor is no longer the measured device at another speed, so its times must be measured again.
"""

from collections.abc import Sequence

import numpy as np

from shared.planning.measurements import Floats

WINDOW_STEPS = 20
TOLERANCE = 0.1
"""Part of the expected seconds by which a window may be off."""


class DeviceFactors:
    """The factors of all stages. Knows nothing of partitions: its caller gives the expected seconds of each stage."""

    def __init__(self, stages: int) -> None:
        self.factors: Floats = np.ones(stages)
        """Seconds of each stage over those that were measured before the run, shape (N,)."""
        self.off: Floats = np.zeros(stages)
        """Seconds of each stage over its expected ones, in its last whole window, shape (N,); 0 before one."""
        self.misfits: set[int] = set()
        """Stages that were off again despite their factors, and are not measured again yet."""
        self._has_factor = np.zeros(stages, dtype=np.bool_)
        self.begin()

    def begin(self) -> None:
        """Begin windows again, because another partition runs from now on. The factors stay."""
        stages = len(self.factors)
        self._steps, self._ratios = np.zeros(stages), np.zeros(stages)
        self._was_off = np.zeros(stages, dtype=np.bool_)

    def measured_again(self, stage: int) -> None:
        """Note that a stage's times are those of today's device."""
        self.factors[stage] = 1.0
        self._has_factor[stage] = False
        self.misfits.discard(stage)
        self.begin()

    def note(self, steps: int, seconds: Sequence[float | None], measured: Sequence[float]) -> bool:
        """Include the mean seconds of each stage in the last steps. Returns whether a factor has changed.

        seconds: None if a stage reported nothing. measured: seconds in the chain's file for the blocks that it runs. A
        stage with 0 s gives no information.
        """
        changed = False
        for stage, (taken, profiled) in enumerate(zip(seconds, measured, strict=True)):
            if taken is None or profiled <= 0.0 or not steps:
                continue
            self._steps[stage] += steps
            self._ratios[stage] += steps * taken / profiled
            if self._steps[stage] >= WINDOW_STEPS:
                changed |= self._end_window(stage)
        return changed

    def _end_window(self, stage: int) -> bool:
        ratio = self._ratios[stage] / self._steps[stage]
        self._steps[stage] = self._ratios[stage] = 0.0
        self.off[stage] = ratio / self.factors[stage]
        is_off = abs(self.off[stage] - 1.0) > TOLERANCE
        has_changed = bool(is_off and self._was_off[stage])
        if has_changed:
            if self._has_factor[stage]:
                self.misfits.add(stage)
            self.factors[stage], self._has_factor[stage] = ratio, True
        self._was_off[stage] = is_off and not has_changed
        return has_changed
