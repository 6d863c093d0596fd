"""The choice of one that knows the path to its end, and has the best layout of its candidate in each second.

A program over seconds and candidates. In each second training goes on, or begins to pause on the way to another candidate, for
as long as the simulator says of these layouts. It is no strict bound: a policy with another layout may pause for less.
"""

import numpy as np

from benchmarks.rivals.moving import World
from benchmarks.rivals.moving.look import Look
from edge_agent.planning.engine.prospects import Place
from edge_agent.planning.measurements import Floats, Ints


def most_steps(world: World) -> float:
    """Return the steps of the run that does most of them."""
    windows = list(world.windows())
    rates: Floats = np.vstack([1.0 / window.best_seconds for window in windows])
    """Steps a second with the best layout of each candidate, shape (T, N); 0 out of reach."""
    end, count = rates.shape
    most: Floats = np.full((end + 1, count), -np.inf)
    """Most steps before each second with whose begin training goes on with each candidate."""
    most[0, rates[0] > 0.0] = 0.0
    rows: Ints = np.zeros(count, dtype=np.int64)
    for window in windows:
        for moment in range(len(window)):
            now = window.begin + moment
            reached = np.flatnonzero(rates[now] > 0.0)
            rows[reached] = window.best_rows[moment, reached]
            for candidate in np.flatnonzero(np.isfinite(most[now])):
                before = most[now, candidate]
                stays = before + rates[now, candidate]
                most[now + 1, candidate] = max(most[now + 1, candidate], stays)
                look = Look(world, window, moment, 0.0, Place(int(candidate), int(rows[candidate])), 0.0)
                others = reached[reached != candidate]
                pauses, _ = look.pauses(others, rows[others])
                _arrive(most, rates, now + pauses, others, before)
    return float(most[end].max())


def _arrive(most: Floats, rates: Floats, arrivals: Floats, candidates: Ints, steps: float) -> None:
    """Note that training goes on with candidates at moments within a second, of which the steps before are none."""
    end = len(rates)
    for arrival, candidate in zip(np.minimum(arrivals, float(end)), candidates, strict=True):
        second = int(arrival)
        missed = (arrival - second) * rates[second, candidate] if second < end else 0.0
        most[second, candidate] = max(most[second, candidate], steps - missed)
