"""Whether what was predicted still holds while a run trains, and what to do where it does not (paper 001).

Steps come in windows. Off by more than a tenth in two windows one after the other means that the device has changed: first all
its predictions are scaled by one factor, which is enough for a device that has slowed down as a whole. Off again in the
next two, some sub-models are measured anew. Knows no clock and measures nothing.
"""

import statistics
from enum import StrEnum

WINDOW_STEPS = 20
TOLERANCE = 0.10
MORE_SAMPLES = 8
"""Sub-models to measure where one factor did not do."""


class Adaptation(StrEnum):
    """What a prediction that is off asks for."""

    SCALE = "scale"
    """Multiply all predictions of the device by `PredictionWatch.ratio`."""
    MEASURE = "measure"
    """Measure `MORE_SAMPLES` sub-models of it and predict again."""


class PredictionWatch:
    """Compares the seconds of one worker's stage with what was predicted of it."""

    def __init__(self, predicted_seconds: float) -> None:
        """predicted_seconds: of a step of the stage; more than 0."""
        self._predicted_seconds = predicted_seconds
        self._window: list[float] = []
        self._off_before: float | None = None
        self._scaled = False
        self.ratio = 1.0
        """Measured over predicted, in the last whole window."""

    def observe(self, seconds: float) -> Adaptation | None:
        """A step took so long. Says what to do where two whole windows were off to the same side.

        The median of a window counts, so that a step that waited for something does not.
        """
        self._window.append(seconds)
        if len(self._window) < WINDOW_STEPS:
            return None
        self.ratio = statistics.median(self._window) / self._predicted_seconds
        self._window.clear()
        off = self.ratio - 1.0
        before, self._off_before = self._off_before, off if abs(off) > TOLERANCE else None
        if self._off_before is None or before is None or (before > 0) != (off > 0):
            return None
        self._off_before = None
        if self._scaled:
            return Adaptation.MEASURE
        self._scaled = True
        self._predicted_seconds *= self.ratio
        return Adaptation.SCALE

    def predict(self, seconds: float) -> None:
        """Another prediction holds from now on: of another stage, or after measuring."""
        self._predicted_seconds = seconds
        self._window.clear()
        self._off_before = None
        self._scaled = False
