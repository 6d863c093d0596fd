"""The policy `best`: the engine's rules among all layouts with all candidates, with its account and its horizon.

A candidate contends with the best layout that training could have there, and its way is a handover. What differs from layouts:
candidates are lost and come back as the device moves. One that may be lost before a change has paid for itself has to be
replaced by then, and that way costs, too. Home is lost as well: then it is where training goes on.
"""

import math
from collections import deque

import numpy as np

from edge_agent.planning.engine.choosing import Contenders, choose, leave
from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.horizon import Horizon
from edge_agent.planning.engine.ledger import Ledger
from edge_agent.planning.engine.prospects import Place, Seen
from edge_agent.planning.measurements import Bools, Floats

LEAST_SPEED, MOST_SECONDS = 1e-9, 1e9
"""Steps a second of a candidate out of reach, and seconds of the way there. It is never chosen."""
TRUSTED_SECONDS = 1200.0
"""Time for which a proven lead is expected to last on, since a device moves on. The account has its part of the steps in it."""
REMEMBERED = 200
"""Candidates that were lost, by which the stay of others is judged."""


class Best:
    """The policy `best` among N candidates."""

    def __init__(self, candidates: int, current: int, config: EngineConfig | None = None) -> None:
        """candidates: N. current: the place of the one that training begins with."""
        self._config = config or EngineConfig()
        self._current = current
        self._moved_seconds = -math.inf
        self._seen: Seen | None = None
        self._stayed = False
        """True if no candidate was left since the last observation."""
        self._horizon = Horizon(self._config.margin, self._config.horizon_beta, 0.0)
        self._reach = Reach(candidates)
        self._ledger = Ledger(self._config, current, candidates)

    def observe(self, seen: Seen) -> Place | None:
        """Return a proposal, or None to stay."""
        in_reach = np.isfinite(seen.step_seconds)
        speeds = np.maximum(1.0 / seen.step_seconds, LEAST_SPEED)
        self._count(seen, speeds)
        self._reach.record(seen.seconds, in_reach)
        if not in_reach.any():
            return None
        if not in_reach[self._current]:
            return seen.best(leave(self._contenders(seen, speeds, in_reach), in_reach).row)
        if not in_reach[self._ledger.home]:
            self._ledger.set_home(self._current)
        self._horizon.note(seen.steps, speeds, in_reach, self._current)
        if seen.seconds - self._moved_seconds < self._config.dwell_seconds:
            return None
        chosen = choose(self._contenders(seen, speeds, in_reach), self._ledger, self._config)
        if chosen is not None and chosen.row == self._current:
            self._ledger.set_home(self._current)
            return None
        return None if chosen is None else seen.best(chosen.row)

    def note_moved(self, seconds: float, candidate: int) -> None:
        """Learn that training goes on with this candidate."""
        if candidate != self._current:
            self._moved_seconds, self._current, self._stayed = seconds, candidate, False

    def _count(self, seen: Seen, speeds: Floats) -> None:
        """Enter the steps since the last observation."""
        before, self._seen, stayed, self._stayed = self._seen, seen, self._stayed, True
        if before is None:
            self._horizon.begin(seen.steps)
            return
        if seen.steps < before.steps:  # the run went back to a checkpoint
            self._horizon.go_back(seen.steps)
        if (since := seen.seconds - before.seconds) > 0.0:
            done_steps = max(0.0, seen.steps - before.steps)
            is_at_home = stayed and self._current == self._ledger.home
            self._ledger.record(since, speeds, done_steps, is_at_home=is_at_home)

    def _contenders(self, seen: Seen, speeds: Floats, in_reach: Bools) -> Contenders:
        """Return the candidates as they stand now."""
        current, home = self._current, self._ledger.home
        stays = np.maximum(self._reach.remaining(seen.seconds), 1.0 / MOST_SECONDS)
        horizon_steps = self._horizon.steps(seen.steps, math.inf)
        if in_reach[current]:  # it is left then, anyway
            horizon_steps = min(horizon_steps, max(1.0, float(stays[current] * speeds[current])))
        ways = np.maximum(1.0, horizon_steps / speeds / stays)
        there = np.where(in_reach, np.minimum(seen.handover_seconds * ways, MOST_SECONDS), MOST_SECONDS)
        there[current] = 0.0
        # A smaller lead may be an error of what probes show. Where training goes on and home are known better.
        leads = (1.0 - self._config.margin) * speeds >= speeds[current]
        leads[[current, home]] = True
        back = there.copy() if current == home else np.full_like(there, there[home])
        back[home] = 0.0
        return Contenders(
            current=current,
            allowed=in_reach & leads,
            speeds=speeds,
            mean_speeds=speeds,
            there=there,
            back=back,
            usual_home_seconds=float(there[home]),
            horizon_steps=horizon_steps,
            remaining_steps=TRUSTED_SECONDS * float(speeds.max()),
            is_behind=self._horizon.is_behind,
            is_settled=True,
            answers_a_device=False,
            only_fills=np.zeros_like(in_reach),
            sends=np.ones_like(in_reach),
        )


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
