"""The outcome of a change of deployment: predicted against measured seconds per step. An honest engine shows its error."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of the last change so far."""

    predicted_seconds_per_step: float
    """Prediction of the decision, from the rates until then; NaN when the engine did not choose the deployment."""
    modelled_seconds_per_step: float
    """Seconds by the cost model, from the rates seen since."""
    measured_seconds_per_step: float
    steps: int


class OutcomeCounter:
    """The counter of the steps with one deployment."""

    def __init__(self, predicted_seconds_per_step: float) -> None:
        self._predicted_seconds_per_step = predicted_seconds_per_step
        self._seconds = self._modelled_steps = 0.0
        self._steps = 0
        self._at_step = 0.0, 0.0

    def add(self, seconds: float, modelled_steps: float, steps: int) -> None:
        """Add some seconds, the model's steps in them, and the steps settled in them."""
        self._seconds += seconds
        self._modelled_steps += modelled_steps
        self._steps += steps
        if steps:
            self._at_step = self._seconds, self._modelled_steps

    def forget_wait(self) -> None:
        """Forget the time since the last step."""
        self._seconds, self._modelled_steps = self._at_step

    def outcome(self) -> Outcome | None:
        """Return the outcome; None until a step was done."""
        if not self._steps or not self._modelled_steps:
            return None
        return Outcome(
            self._predicted_seconds_per_step,
            self._seconds / self._modelled_steps,
            self._seconds / self._steps,
            self._steps,
        )
