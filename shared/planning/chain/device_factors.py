"""How much slower than measured each stage is today.

A stage that is off by more than a tenth in two windows of 20 steps, one after the other, is another device than it was: its
factor is then that of the second window. Whatever is less, or shorter, is noise, and changes nothing. A stage that is off again
after it was given a factor is no longer the measured device at another speed, so its times want to be taken anew.
"""

from collections.abc import Sequence

import numpy as np

from shared.planning.measurements import Floats

WINDOW_STEPS = 20
TOLERANCE = 0.1
"""Part of the expected seconds by which a window may be off."""


class DeviceFactors:
    """The factors of all stages. Knows nothing of partitions: it is told what each stage is expected to take."""

    def __init__(self, stages: int) -> None:
        self.factors: Floats = np.ones(stages)
        """Seconds of each stage over those that were measured beforehand, shape (N,)."""
        self.off: Floats = np.zeros(stages)
        """What each stage took over what was expected of it then, in its last whole window, shape (N,); 0 before one."""
        self.misfits: set[int] = set()
        """Stages that were off again after they had been given a factor, and are not measured again."""
        self._has_factor = np.zeros(stages, dtype=np.bool_)
        self.begin()

    def begin(self) -> None:
        """Another partition runs from now on, so windows begin again; the factors stay."""
        stages = len(self.factors)
        self._steps, self._ratios = np.zeros(stages), np.zeros(stages)
        self._was_off = np.zeros(stages, dtype=np.bool_)

    def measured_again(self, stage: int) -> None:
        """Its times are those of today's device."""
        self.factors[stage] = 1.0
        self._has_factor[stage] = False
        self.misfits.discard(stage)
        self.begin()

    def note(self, steps: int, seconds: Sequence[float | None], measured: Sequence[float]) -> bool:
        """Take in the mean seconds that each stage took in the last steps. Returns whether a factor has changed.

        seconds: None where a stage reported nothing. measured: what the chain's file has for the blocks that it runs; a stage
        with 0 s tells nothing.
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
