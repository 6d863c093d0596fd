"""The policy `best`: the fastest candidate, as long as the way to it is worth its price.

A candidate that leads now may trail in a minute, because the device moves or a link oscillates. So a handover has to pay within
the time for which a lead lasts, and what followed leads have lost against a candidate that was simply kept is counted.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.choice.policy import Move, Seen
from edge_agent.planning.measurements import Bools, Floats

PROFIT = 2.0
"""Factor by which a handover must pay, because predictions are not exact."""
RETURN_PRICE = 2.0
"""Factor on the price of a way back to a candidate that was left lately."""
FORGETTING = 0.8
"""Weight of the past in the mean time between changes of the leader."""
REMEMBERED = 200
"""Candidates that were lost, by which the stay of others is judged."""


@dataclass(frozen=True)
class ChoiceConfig:
    """The eagerness of the policy `best`."""

    margin: float = 0.05
    """Part of the time per step by which another candidate must lead (`engine.margin`)."""
    dwell_seconds: float = 5.0
    """Least time between handovers (`engine.dwell_seconds`)."""
    return_seconds: float = 600.0
    """Time for which a way back costs double."""
    loss_fraction: float = 0.02
    """Part of the steps that following leads may lose against a kept candidate."""
    memory_seconds: float = 600.0
    """Time constant with which such a loss is forgotten."""
    proof_seconds: float = 6000.0
    """Time constant of the mean speeds that prove a lead: far above the period of any oscillation."""


class Best:
    """The policy `best` among N candidates."""

    def __init__(self, candidates: int, current: int, config: ChoiceConfig | None = None) -> None:
        """candidates: N. current: the place of the one that training begins with."""
        self._config = config or ChoiceConfig()
        self._current = current
        self._moved_at = -math.inf
        self._left_at = np.full(candidates, -math.inf)
        self._leads = _Leads(self._config.margin)
        self._reach = Reach(candidates)
        self._account = _StepsOfEach(candidates, self._config)

    def observe(self, seen: Seen) -> Move | None:
        """Return a proposal, or None to stay."""
        speeds = 1.0 / seen.step_seconds
        self._account.record(seen, speeds)
        self._leads.record(seen)
        self._reach.record(seen.seconds, speeds > 0.0)
        if not (speeds > 0.0).any():
            return None
        if not speeds[self._current] > 0.0:
            return Move(int(np.argmax(self._mean_speeds(seen, speeds))))
        if seen.seconds - self._moved_at < self._config.dwell_seconds:
            return None
        # What the account cannot pay has to have led on the mean of minutes, and to lead now.
        is_paid = self._prices(seen, speeds) <= self._account.available_steps()
        proven = self._pays(seen, self._account.mean_speeds(speeds), self._config.memory_seconds)
        pays = np.where(
            is_paid,
            self._pays(seen, speeds, self._leads.stay_seconds(seen.seconds)),
            proven & (speeds >= speeds[self._current]),
        )
        return Move(int(np.argmax(np.where(pays, self._mean_speeds(seen, speeds), 0.0)))) if pays.any() else None

    def note_moved(self, seconds: float, candidate: int) -> None:
        """Learn that training goes on with this candidate."""
        if candidate != self._current:
            self._left_at[self._current] = seconds
            self._moved_at, self._current = seconds, candidate

    def _mean_speeds(self, seen: Seen, speeds: Floats) -> Floats:
        """Return the steps a second with each until the next one has to be found, the way there included, shape (N,)."""
        stay = np.maximum(1e-9, self._reach.remaining(seen.seconds))
        means: Floats = speeds / (1.0 + seen.handover_seconds / stay)
        return means

    def _prices(self, seen: Seen, speeds: Floats) -> Floats:
        """Return the steps that the way to each costs, shape (N,)."""
        is_return = seen.seconds - self._left_at < self._config.return_seconds
        prices: Floats = seen.handover_seconds * speeds[self._current] * np.where(is_return, RETURN_PRICE, 1.0)
        return prices

    def _pays(self, seen: Seen, speeds: Floats, stay_seconds: float) -> Bools:
        """Tell with which candidates training gains its handover twice over, shape (N,).

        stay_seconds: expected of a lead. It counts while the candidate stays in reach, too. Where today's is lost before, a
        handover has to be paid for anyway.
        """
        config, current = self._config, self._current
        remaining = self._reach.remaining(seen.seconds)
        horizon = np.minimum(remaining, stay_seconds)
        until_lost = np.minimum(horizon, remaining[current])
        spared = speeds * np.minimum(seen.handover_seconds, horizon - until_lost)
        gain = (speeds - speeds[current]) * until_lost + spared
        pays: Bools = ((1.0 - config.margin) * speeds >= speeds[current]) & (
            gain >= PROFIT * self._prices(seen, speeds)
        )
        pays[current] = False
        return pays


class Reach:
    """The time for which candidates stay in reach, by those that were lost before."""

    def __init__(self, candidates: int) -> None:
        self._since = np.full(candidates, math.nan)
        self._lasted: deque[float] = deque(maxlen=REMEMBERED)

    def record(self, seconds: float, in_reach: Bools) -> None:
        """Enter which of them are in reach."""
        lost = np.isfinite(self._since) & ~in_reach
        self._lasted.extend((seconds - self._since[lost]).tolist())
        came = in_reach & np.isnan(self._since)
        self._since[came] = seconds
        self._since[lost] = math.nan

    def remaining(self, seconds: float) -> Floats:
        """Return the expected seconds until each is lost, shape (N,); 0 for those out of reach.

        The mean of those that lasted longer. As long again for one that is older than all, and endless where none was lost.
        """
        age = seconds - self._since
        if not self._lasted:
            return np.where(np.isnan(age), 0.0, np.inf)
        lasted = np.sort(self._lasted)
        first = np.searchsorted(lasted, age, side="right")
        count = len(lasted) - first
        beyond = np.append(np.cumsum(lasted[::-1])[::-1], 0.0)[first]
        expected = np.where(count > 0, beyond / np.maximum(count, 1) - age, age)
        return np.where(np.isnan(age), 0.0, expected)


class _Leads:
    """The leader, and the time for which one leads: until another one is faster by the margin.

    A leader that is lost was not outrun, and the next one has led for as long.
    """

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._leader: int | None = None
        self._since = self._earliest = 0.0
        self._mean_seconds: float | None = None
        self._measured_at: Floats | None = None
        self._measured_before: Floats | None = None

    def record(self, seen: Seen) -> None:
        """Enter the seconds a step with each."""
        seconds, step_seconds = seen.seconds, seen.step_seconds
        if self._measured_at is None or self._measured_before is None:
            self._measured_at = self._measured_before = seen.measured_at.copy()
        is_new = seen.measured_at > self._measured_at
        self._measured_before = np.where(is_new, self._measured_at, self._measured_before)
        self._measured_at = np.where(is_new, seen.measured_at, self._measured_at)
        fastest = int(np.argmin(step_seconds))
        leader = self._leader
        if leader is None:
            self._leader, self._since, self._earliest = fastest, seconds, seconds
        elif not np.isfinite(step_seconds[leader]):
            self._leader = fastest
        elif step_seconds[fastest] < (1.0 - self._margin) * step_seconds[leader]:
            lasted, mean = seconds - self._since, self._mean_seconds
            self._mean_seconds = lasted if mean is None else FORGETTING * mean + (1.0 - FORGETTING) * lasted
            self._leader, self._since = fastest, seconds
            self._earliest = float(min(self._measured_before[fastest], self._measured_before[leader]))

    def stay_seconds(self, seconds: float) -> float:
        """Return the time for which the lead is expected to last on: the rest of the mean, or as long as it has lasted.

        It may have begun at any time since the measurement before the one that shows it.
        """
        return max(seconds - self._since, (self._mean_seconds or 0.0) - (seconds - self._earliest))


class _StepsOfEach:
    """The steps that were done, beside those with each candidate had it been kept since it came into reach.

    It looks at a candidate when that is measured. Between two measurements it had the mean of both speeds.
    """

    def __init__(self, candidates: int, config: ChoiceConfig) -> None:
        self._config = config
        self._kept, self._done, self._all_kept, self._seconds = (np.zeros(candidates) for _ in range(4))
        self._measured_at = np.full(candidates, -math.inf)
        self._speeds, self._steps = np.zeros(candidates), np.zeros(candidates)

    def record(self, seen: Seen, speeds: Floats) -> None:
        """Enter what was measured since the last record."""
        is_new = seen.measured_at > self._measured_at
        stays = is_new & (speeds > 0.0) & (self._speeds > 0.0)
        passed = np.where(stays, seen.measured_at - self._measured_at, 0.0)
        decay = np.exp(-passed / self._config.memory_seconds)
        forgetting = np.exp(-passed / self._config.proof_seconds)
        more = passed * (speeds + self._speeds) / 2.0
        done = self._done * decay + np.where(stays, seen.steps - self._steps, 0.0)
        is_lost = speeds <= 0.0
        self._kept, self._done, self._all_kept, self._seconds = (
            np.where(is_lost, 0.0, total)
            for total in (
                self._kept * decay + more,
                done,
                self._all_kept * forgetting + more,
                self._seconds * forgetting + passed,
            )
        )
        is_new |= is_lost
        self._measured_at = np.where(is_new, seen.measured_at, self._measured_at)
        self._speeds = np.where(is_new, speeds, self._speeds)
        self._steps = np.where(is_new, seen.steps, self._steps)

    def available_steps(self) -> float:
        """Return the steps that may be lost now: part of those in its memory, less the lead of a kept candidate.

        Endless before anything was measured twice.
        """
        if not self._seconds.any():
            return math.inf
        config = self._config
        most = config.loss_fraction * config.memory_seconds * float(np.max(self.mean_speeds(np.zeros(1))))
        return most - max(0.0, float(np.max(self._kept - self._done)))

    def mean_speeds(self, speeds: Floats) -> Floats:
        """Return the mean speed of each while it was in reach; the given one where it has just come."""
        return np.where(self._seconds > 0.0, self._all_kept / np.maximum(self._seconds, 1e-9), speeds)
