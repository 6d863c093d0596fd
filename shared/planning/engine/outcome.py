"""What came of a change of deployment: predicted against measured seconds per step. An honest engine shows its error."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What came of the last change so far."""

    predicted_seconds_per_step: float
    """As the decision had it, from the rates until then; NaN when the deployment was not of the engine's choice."""
    modelled_seconds_per_step: float
    """What the cost model says, from the rates seen since."""
    measured_seconds_per_step: float
    steps: int


class Tally:
    """Counts what is done with one deployment."""

    def __init__(self, predicted_seconds_per_step: float) -> None:
        self._predicted_seconds_per_step = predicted_seconds_per_step
        self._seconds = self._modelled_steps = 0.0
        self._steps = 0

    def add(self, seconds: float, modelled_steps: float, steps: int) -> None:
        """Some more seconds, the steps that the model makes of them, and the steps settled in them."""
        self._seconds += seconds
        self._modelled_steps += modelled_steps
        self._steps += steps

    def outcome(self) -> Outcome | None:
        """None until a step was done."""
        if not self._steps or not self._modelled_steps:
            return None
        return Outcome(
            self._predicted_seconds_per_step,
            self._seconds / self._modelled_steps,
            self._seconds / self._steps,
            self._steps,
        )
