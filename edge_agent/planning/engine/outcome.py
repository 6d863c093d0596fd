"""The outcome of a change of deployment: predicted against measured seconds per step. An honest engine shows its error."""

import math


class Outcome:
    """The outcome of one change so far. Its times exist once a step was done."""

    def __init__(self, predicted_seconds_per_step: float) -> None:
        self.predicted_seconds_per_step = predicted_seconds_per_step
        """Prediction of the decision, from the rates until then; NaN when the engine did not choose the deployment."""
        self.steps = 0
        self._seconds = self._modelled_steps = 0.0
        self._at_step = 0.0, 0.0

    @property
    def is_known(self) -> bool:
        """Tell whether a step was done."""
        return bool(self.steps and self._modelled_steps)

    @property
    def modelled_seconds_per_step(self) -> float:
        """Return the seconds by the cost model, from the rates seen since."""
        return self._seconds / self._modelled_steps

    @property
    def measured_seconds_per_step(self) -> float:
        """Return the seconds that steps took; NaN before the first."""
        return self._seconds / self.steps if self.steps else math.nan

    def add(self, seconds: float, modelled_steps: float, steps: int) -> None:
        """Add some seconds, the model's steps in them, and the steps settled in them."""
        self._seconds += seconds
        self._modelled_steps += modelled_steps
        self.steps += steps
        if steps:
            self._at_step = self._seconds, self._modelled_steps

    def forget_wait(self) -> None:
        """Forget the time since the last step."""
        self._seconds, self._modelled_steps = self._at_step
