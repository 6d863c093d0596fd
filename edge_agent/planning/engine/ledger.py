"""The ledger: the gain or loss of adapting, counted in steps against a deployment that was simply kept.

A link that oscillates turns every good decision into a bad one half a period later. So an account bounds the engine's
risk, not a guess about the link. The engine may leave home if the account can pay the move there and back, or if the
lead has lasted longer than any oscillation that it should withstand. The ledger knows speeds and steps, but no links
and no cuts.
"""

import math

import numpy as np

from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.measurements import Floats, Ints

PROOF_PARTS = 4
"""Number of parts in which the time of proof is remembered."""

PROFIT = 2.0
"""Factor by which a move must pay, because predictions are not exact."""


class Ledger:
    """The account against home: the first deployment, and later any that was proven better.

    Arrays are over n contenders: deployments, and all others with a speed.
    """

    def __init__(self, config: EngineConfig, home: int, n: int) -> None:
        self._config = config
        self._balance = self._balance_at_step = 0.0
        self._n = n
        self.set_home(home)

    def set_home(self, home: int) -> None:
        """Call another deployment home. Earlier losses stay."""
        self.home = home
        self.forget()

    def forget(self) -> None:
        """Start the proof of every lead again."""
        n = self._n
        self._lead, self._lag = np.zeros(n), np.zeros(n)
        # The least lead in each part of the time of proof, the newest first, and in the part under way.
        self._troughs = np.zeros((PROOF_PARTS + 1, n))
        self._part_seconds = 0.0
        self._home_steps = self._observed_seconds = 0.0

    def begin(self, home: int, n: int) -> None:
        """Begin with other contenders, none of which has proved anything. Earlier losses stay."""
        self._n = n
        self.set_home(home)

    def consider(self, home: int, rows: Ints) -> None:
        """Go on with other contenders. rows: of each among the present ones, shape (n,); -1 for a newcomer, which has to prove
        itself for the whole time."""
        is_known = rows >= 0
        self.home, self._n = home, len(rows)
        self._lead, self._lag = (np.where(is_known, each[rows], 0.0) for each in (self._lead, self._lag))
        self._troughs = np.where(is_known, self._troughs[:, rows], 0.0)

    def record(self, seconds: float, speeds: Floats, done_steps: float, *, is_at_home: bool) -> None:
        """Enter the steps since the last record.

        speeds: expected at the rates of that time, in steps per second. done_steps: those really done.
        is_at_home: home did all of it, without a move.
        """
        home_steps = done_steps if is_at_home else seconds * float(speeds[self.home])
        decay = math.exp(-seconds / self._config.memory_seconds)
        # Never below 0: home's worth before a change of the link must not hide the change.
        won = seconds * (speeds - speeds[self.home])
        self._lead = np.maximum(0.0, self._lead * decay + won)
        self._lag = np.maximum(0.0, self._lag * decay - won)
        self._home_steps = self._home_steps * decay + seconds * float(speeds[self.home])
        self._observed_seconds = self._observed_seconds * decay + seconds
        self._part_seconds += seconds
        if self._part_seconds >= self._config.proof_seconds / PROOF_PARTS:
            self._troughs = np.concatenate([self._lead[None, :], self._troughs[:-1]])
            self._part_seconds = 0.0
        self._troughs[0] = np.minimum(self._troughs[0], self._lead)
        # Gains are not saved up: they would only pay for worse attempts.
        self._balance = min(0.0, self._balance + done_steps - (1.0 - self._config.loss_fraction) * home_steps)
        if done_steps:
            self.keep_wait()

    def charge(self, seconds: float) -> None:
        """Charge seconds in which training at home waited for the engine's own measuring. Elsewhere, home's steps in them are
        charged already."""
        lost_steps = float(self._lost_steps(np.array(seconds)))
        self._balance -= lost_steps
        self._balance_at_step -= lost_steps

    def keep_wait(self) -> None:
        """Have the debt until now stay, because a change made it."""
        self._balance_at_step = self._balance

    def forget_wait(self) -> None:
        """Take back the debt of the time since the last step, in which no layout could have done any."""
        self._balance = self._balance_at_step

    def available_steps(self, remaining_steps: float) -> float:
        """Return the steps that may be lost now, in a run that has so many steps to go."""
        return self._balance + self._config.loss_fraction * remaining_steps

    def gains(self, there_seconds: Floats, remaining_steps: float) -> Floats:
        """Return the steps that each contender would gain in a run with so many to go, shape (n,); 0 or less: stay.

        The least lead of the time of proof counts. Over whole periods of an oscillation without a favourite, a lead
        returns to 0, so the rest is the real lead. It must repay the move with a profit, and also the account's
        overdraft, which has to be won back.
        """
        lead: Floats = self._troughs.min(axis=0) * remaining_steps / max(self._home_steps, 1.0)
        overdrawn_steps = max(0.0, -self.available_steps(remaining_steps))
        return lead - PROFIT * (self._lost_steps(there_seconds) + overdrawn_steps)

    def regrets(self, index: int, back_seconds: float) -> bool:
        """Tell whether home was recently so much better than this deployment that the return would have paid."""
        return float(self._lag[index]) >= PROFIT * float(self._lost_steps(np.array(back_seconds)))

    def _home_speed(self) -> float:
        return self._home_steps / max(self._observed_seconds, 1.0)

    def _lost_steps(self, seconds: Floats) -> Floats:
        """Return home's steps in so many seconds, by its mean speed."""
        return seconds * self._home_speed()
