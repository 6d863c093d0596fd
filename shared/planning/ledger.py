"""The ledger: what adapting has gained or lost, counted in steps against a deployment that was simply kept.

A link that oscillates turns every good decision into a bad one half a period later. So what the engine may risk is bounded by
an account and not by a guess about the link: to leave home must be what the account can pay, there and back, or must have
been worth it for longer than any oscillation that is to be withstood. Knows speeds and steps, nothing of links or cuts.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.planning.cost import Floats


@dataclass(frozen=True)
class Limits:
    """How much may be risked."""

    loss_fraction: float = 0.01
    """Part of the run's steps that may be lost to changes that turn out wrong."""
    proof_seconds: float = 300.0
    """How long a lead must have been worth the way there before it counts as proven: the longest period to be withstood."""
    memory_seconds: float = 600.0
    """How fast a lead is forgotten."""


class Ledger:
    """Counts against home: the deployment at first, and later any that was proven better. Arrays are over n deployments."""

    def __init__(self, limits: Limits, home: int, n: int) -> None:
        self._limits = limits
        self._balance = 0.0
        self.settle_at(home, n)

    def settle_at(self, home: int, n: int) -> None:
        """Call another deployment home. What was lost before stays lost."""
        self.home = home
        self.forget(n)

    def forget(self, n: int) -> None:
        """Start over with proving any lead."""
        self._lead, self._worth_it_seconds = np.zeros(n), np.zeros(n)
        self._home_steps = self._observed_seconds = 0.0

    def record(
        self, seconds: float, speeds: Floats, done_steps: int, there_seconds: Floats, *, is_at_home: bool
    ) -> None:
        """What went on since the last record.

        speeds: to be expected over the rates of that time, in steps per second. done_steps: what was really done.
        there_seconds: how long the way to each deployment would take. is_at_home: home did all of it, with no way to go.
        """
        home_steps = float(done_steps) if is_at_home else seconds * float(speeds[self.home])
        kept = math.exp(-seconds / self._limits.memory_seconds)
        # Never below 0, so that what home was worth before a change of the link does not hide the change.
        self._lead = np.maximum(0.0, self._lead * kept + seconds * (speeds - speeds[self.home]))
        self._home_steps = self._home_steps * kept + seconds * float(speeds[self.home])
        self._observed_seconds = self._observed_seconds * kept + seconds
        # Over whole periods of an oscillation that favours nobody, a lead comes back to 0.
        is_worth_it = (self._lead > 0.0) & (self._lead >= self._lost_steps(there_seconds))
        self._worth_it_seconds = np.where(is_worth_it, self._worth_it_seconds + seconds, 0.0)
        # Gains are not saved up: they would only pay for worse attempts.
        self._balance = min(0.0, self._balance + done_steps - (1.0 - self._limits.loss_fraction) * home_steps)

    def available_steps(self, remaining_steps: float) -> float:
        """What may be lost now, in a run that has so many steps to go."""
        return self._balance + self._limits.loss_fraction * remaining_steps

    def proven(self, there_seconds: Floats, remaining_steps: float) -> NDArray[np.bool_]:
        """Which deployments lead over home by enough, and for long enough, to go there for good, shape (n,).

        The way there must have been worth it for long, and must be worth it again, twice over, in what the run has to go.
        """
        expected_lead = self._lead * remaining_steps / max(self._home_steps, 1.0)
        is_proven = (self._worth_it_seconds >= self._limits.proof_seconds) & (
            expected_lead >= 2.0 * self._lost_steps(there_seconds)
        )
        return is_proven & (self.available_steps(remaining_steps) >= 0.0)

    def lead_seconds(self, index: int) -> float:
        """What the lead of a deployment is worth, in seconds of home."""
        return float(self._lead[index]) / max(self._home_speed(), 1e-9)

    def _home_speed(self) -> float:
        return self._home_steps / max(self._observed_seconds, 1.0)

    def _lost_steps(self, seconds: Floats) -> Floats:
        """What home would have done in so many seconds, by its mean speed."""
        return seconds * self._home_speed()
