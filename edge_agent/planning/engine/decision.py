"""The input of the decision engine, its proposals, and what came of them: an honest engine shows its error."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from edge_agent.planning.layout import Layout
from edge_agent.planning.profile import Hop


@dataclass(frozen=True)
class Observation:
    """The measurements of links and workers since the last observation."""

    seconds: float
    """Time by any clock that never goes back. Observe about once a second, also while nothing is sent."""
    step: int
    """Batches settled so far."""
    rates: Mapping[Hop, float | None] = field(default_factory=dict)
    """Mean bits per second from the first worker to the second, 0 when dead. None, or left out, keeps the known rate."""
    trips: Mapping[Hop, float | None] = field(default_factory=dict)
    """Seconds there and back between two workers."""
    work: Mapping[str, float | None] = field(default_factory=dict)
    """Mean seconds of computing in a step of today's layout, by worker."""
    encoding: Mapping[str, float | None] = field(default_factory=dict)
    """Mean seconds of encoding in a step, of the workers whose encoding is measured. With None, `work` says nothing either."""

    @property
    def known_work(self) -> dict[str, float]:
        """Return the seconds of computing and encoding in a step, by worker, where both are known."""
        both = ((name, taken, self.encoding.get(name, 0.0)) for name, taken in self.work.items())
        return {name: taken + coding for name, taken, coding in both if taken is not None and coding is not None}


class Reason(StrEnum):
    """The reason of a change."""

    DEVICE = "device"
    """A worker has become slower or quicker."""
    LINK = "link"
    """The links carry more or less than they did."""
    PIN = "pin"
    """Today's layout may not be chosen any more, as where an operator holds other cuts."""
    WORKER = "worker"
    """A trainer that was left out is back."""


@dataclass(frozen=True)
class Decision:
    """A proposal to train under another layout."""

    layout: Layout
    seconds_per_step: float
    """Predicted with it, from the last minute's rates."""
    staying_seconds_per_step: float
    """Predicted without the change."""
    migration_seconds: float
    """Predicted time of the blocks on the links; 0 without moves."""
    abandon_after_seconds: float
    """Time after which a move is given up for the old layout; infinite if the blocks have to arrive."""
    reason: Reason = Reason.LINK
    cause: str = ""
    """Change that explains it, in words that follow "because"."""


class EngineChange(NamedTuple):
    """A decision that came into force."""

    time_seconds: float
    """Time at which it was seen to be in force, by time.time."""
    step: int
    """Steps that were done then."""
    before: Layout
    """Layout until then."""
    decision: Decision


class Outcome:
    """The outcome of one change so far: predicted against measured seconds per step. Its times exist once a step was done."""

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
