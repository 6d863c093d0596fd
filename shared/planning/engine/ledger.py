"""The ledger: what adapting has gained or lost, counted in steps against a deployment that was simply kept.

A link that oscillates turns every good decision into a bad one half a period later. So what the engine may risk is bounded by
an account and not by a guess about the link. The engine may leave home if the account can pay the way there and back, or if the
lead has stood for longer than any oscillation that it should withstand. The ledger knows speeds and steps, nothing of links or
cuts.
"""

import math
from dataclasses import dataclass

import numpy as np

from shared.planning.measurements import Floats

PROOF_PARTS = 4
"""Parts in which the time of proof is remembered."""

PROFIT = 2.0
"""How many times over a way must pay: what is predicted is not what comes."""


@dataclass(frozen=True)
class RiskLimits:
    """How much may be risked."""

    loss_fraction: float = 0.01
    """Part of the run's steps that may be lost to changes that turn out wrong."""
    proof_seconds: float = 300.0
    """How long a lead must have stood before it counts: the longest period of an oscillation that does no harm."""
    memory_seconds: float = 600.0
    """How fast a lead is forgotten."""


class Ledger:
    """Counts against home: the deployment at first, and later any that was proven better.

    Arrays are over n contenders: deployments, and whatever else has a speed.
    """

    def __init__(self, limits: RiskLimits, home: int, n: int) -> None:
        self._limits = limits
        self._balance = 0.0
        self._n = n
        self.set_home(home)

    def set_home(self, home: int) -> None:
        """Call another deployment home. What was lost before stays lost."""
        self.home = home
        self.forget()

    def forget(self) -> None:
        """Start over with proving any lead."""
        n = self._n
        self._lead, self._lag = np.zeros(n), np.zeros(n)
        # The least lead in each part of the time of proof, the newest first, and in the part under way.
        self._troughs = np.zeros((PROOF_PARTS + 1, n))
        self._part_seconds = 0.0
        self._home_steps = self._observed_seconds = 0.0

    def record(self, seconds: float, speeds: Floats, done_steps: int, *, is_at_home: bool) -> None:
        """Enter what was done since the last record.

        speeds: to be expected over the rates of that time, in steps per second. done_steps: what was really done.
        is_at_home: home did all of it, with no way to go.
        """
        home_steps = float(done_steps) if is_at_home else seconds * float(speeds[self.home])
        decay = math.exp(-seconds / self._limits.memory_seconds)
        # Never below 0, so that what home was worth before a change of the link does not hide the change.
        won = seconds * (speeds - speeds[self.home])
        self._lead = np.maximum(0.0, self._lead * decay + won)
        self._lag = np.maximum(0.0, self._lag * decay - won)
        self._home_steps = self._home_steps * decay + seconds * float(speeds[self.home])
        self._observed_seconds = self._observed_seconds * decay + seconds
        self._part_seconds += seconds
        if self._part_seconds >= self._limits.proof_seconds / PROOF_PARTS:
            self._troughs = np.concatenate([self._lead[None, :], self._troughs[:-1]])
            self._part_seconds = 0.0
        self._troughs[0] = np.minimum(self._troughs[0], self._lead)
        # Gains are not saved up: they would only pay for worse attempts.
        self._balance = min(0.0, self._balance + done_steps - (1.0 - self._limits.loss_fraction) * home_steps)

    def available_steps(self, remaining_steps: float) -> float:
        """What may be lost now, in a run that has so many steps to go."""
        return self._balance + self._limits.loss_fraction * remaining_steps

    def gains(self, there_seconds: Floats, remaining_steps: float) -> Floats:
        """Steps that going over to each contender would gain in a run with so many to go, shape (n,); not above 0: stay.

        Counted is the least lead of the time of proof. Over whole periods of an oscillation that favours nobody, a lead comes
        back to 0, so what remains of it is what it is better by. The way there must be worth it with a profit, and so must what
        the account is overdrawn by: it has to be won back.
        """
        lead: Floats = self._troughs.min(axis=0) * remaining_steps / max(self._home_steps, 1.0)
        overdrawn_steps = max(0.0, -self.available_steps(remaining_steps))
        return lead - PROFIT * (self._lost_steps(there_seconds) + overdrawn_steps)

    def regrets(self, index: int, back_seconds: float) -> bool:
        """Whether home was lately so much better than this deployment that the way back would have paid."""
        return float(self._lag[index]) >= PROFIT * float(self._lost_steps(np.array(back_seconds)))

    def _home_speed(self) -> float:
        return self._home_steps / max(self._observed_seconds, 1.0)

    def _lost_steps(self, seconds: Floats) -> Floats:
        """What home would have done in so many seconds, by its mean speed."""
        return seconds * self._home_speed()
