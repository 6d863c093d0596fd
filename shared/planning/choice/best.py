"""The policy `best`: the fastest candidate, as long as the way to it is worth its price.

A candidate that leads now may trail in a minute, because the device moves or a link oscillates. So a handover has to pay within
the time for which a lead lasts, and what followed leads have lost against a candidate that was simply kept is counted.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from shared.planning.choice.policy import Move, Seen
from shared.planning.measurements import Bools, Floats

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
    loss_fraction: float = 0.03
    """Part of the steps that following leads may lose against a kept candidate."""
    memory_seconds: float = 600.0
    """Time constant with which such a loss is forgotten."""


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
        self._account = _Account(candidates, self._config)

    def observe(self, seen: Seen) -> Move | None:
        """Return a proposal, or None to stay."""
        speeds = 1.0 / seen.step_seconds
        self._account.record(seen, speeds)
        self._leads.record(seen.seconds, seen.step_seconds)
        self._reach.record(seen.seconds, speeds > 0.0)
        if not (speeds > 0.0).any():
            return None
        if not speeds[self._current] > 0.0:
            return Move(int(np.argmax(self._mean_speeds(seen, speeds))))
        if seen.seconds - self._moved_at < self._config.dwell_seconds:
            return None
        if self._account.is_overdrawn(self._current):
            speeds = self._account.mean_speeds(speeds)
        pays = self._pays(seen, speeds)
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

    def _pays(self, seen: Seen, speeds: Floats) -> Bools:
        """Tell with which candidates training gains its handover twice over, shape (N,).

        A lead counts for as long as it is expected to last and the candidate to stay in reach. Where today's is lost before, a
        handover has to be paid for anyway.
        """
        config, current = self._config, self._current
        remaining = self._reach.remaining(seen.seconds)
        horizon = np.minimum(remaining, self._leads.stay_seconds(seen.seconds))
        until_lost = np.minimum(horizon, remaining[current])
        is_return = seen.seconds - self._left_at < config.return_seconds
        price = seen.handover_seconds * speeds[current] * np.where(is_return, RETURN_PRICE, 1.0)
        spared = speeds * np.minimum(seen.handover_seconds, horizon - until_lost)
        gain = (speeds - speeds[current]) * until_lost + spared
        pays: Bools = ((1.0 - config.margin) * speeds >= speeds[current]) & (gain >= PROFIT * price)
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
        self._since = 0.0
        self._mean_seconds: float | None = None

    def record(self, seconds: float, step_seconds: Floats) -> None:
        """Enter the seconds a step with each."""
        fastest = int(np.argmin(step_seconds))
        leader = self._leader
        if leader is None:
            self._leader, self._since = fastest, seconds
        elif not np.isfinite(step_seconds[leader]):
            self._leader = fastest
        elif step_seconds[fastest] < (1.0 - self._margin) * step_seconds[leader]:
            lasted, mean = seconds - self._since, self._mean_seconds
            self._mean_seconds = lasted if mean is None else FORGETTING * mean + (1.0 - FORGETTING) * lasted
            self._leader, self._since = fastest, seconds

    def stay_seconds(self, seconds: float) -> float:
        """Return the time for which the lead is expected to last on: what is left of the mean, or as long as it has lasted."""
        age = seconds - self._since
        return max(age, (self._mean_seconds or 0.0) - age)


class _Account:
    """The steps that were done, beside those with each candidate had it been kept since it came into reach."""

    def __init__(self, candidates: int, config: ChoiceConfig) -> None:
        self._config = config
        self._kept, self._done, self._seconds = (np.zeros(candidates) for _ in range(3))
        self._before: tuple[float, float, Floats] | None = None

    def record(self, seen: Seen, speeds: Floats) -> None:
        """Enter the steps since the last record. Each candidate had the mean of its speeds then and now."""
        if self._before is not None:
            moment, steps, earlier = self._before
            passed = seen.seconds - moment
            decay = math.exp(-passed / self._config.memory_seconds)
            stays = (speeds > 0.0) & (earlier > 0.0)
            self._kept = np.where(stays, self._kept * decay + passed * (speeds + earlier) / 2.0, 0.0)
            self._done = np.where(stays, self._done * decay + seen.steps - steps, 0.0)
            self._seconds = np.where(stays, self._seconds * decay + passed, 0.0)
        self._before = seen.seconds, seen.steps, speeds

    def is_overdrawn(self, current: int) -> bool:
        """Tell whether a kept candidate would have done so many steps more that nothing may be risked now."""
        config = self._config
        if not self._seconds[current]:
            return False
        most = config.loss_fraction * config.memory_seconds * float(np.max(self.mean_speeds(np.zeros(1))))
        return float(np.max(self._kept - self._done)) > most

    def mean_speeds(self, speeds: Floats) -> Floats:
        """Return the mean speed of each while it was in reach; the given one where it has just come."""
        return np.where(self._seconds > 0.0, self._kept / np.maximum(self._seconds, 1e-9), speeds)
