"""The seconds of one measured step, told apart. Numbers only."""

from collections.abc import Iterable
from typing import NamedTuple


class StepSeconds(NamedTuple):
    """The seconds of the passes of a step, and of its update."""

    forward: float
    backward: float
    """With whatever lies between both passes, as a replay."""
    update: float

    @property
    def total(self) -> float:
        """Return the seconds of the whole step."""
        return self.forward + self.backward + self.update


def totals(steps: Iterable[StepSeconds]) -> list[float]:
    """Return the seconds of each whole step."""
    return [step.total for step in steps]
