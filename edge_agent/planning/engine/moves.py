"""The time from one layout of the pool to another: until blocks have moved, links are up again, and the pipeline is full.

Whatever differs, bits alone too, the workers drain, commit and dial again, which takes two round trips.
"""

import numpy as np

from edge_agent.planning.cost import Conditions, moving_seconds
from edge_agent.planning.engine.beliefs import Beliefs
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.measurements import Floats

CHANGE_TRIPS = 2
"""Round trips of a change: all commit, and the links are dialled again."""


class Moves:
    """The moves between layouts, under the believed links and devices."""

    def __init__(self, pool: Pool, beliefs: Beliefs) -> None:
        self._pool = pool
        self._beliefs = beliefs

    def there(self, start: int, *conditions: Conditions) -> Floats:
        """Return the seconds to each, until training is at full speed, shape (n,).

        conditions: those given, or the present and the mean ones. The longest time counts.
        """
        moved, changes = self._pool.moved(start), self._pool.changes(start)
        ways = [moving_seconds(moved, at) + self._beginning(at) for at in self._some(conditions)]
        return np.where(changes, np.max(ways, axis=0), 0.0)

    def back(self, end: int) -> Floats:
        """Return the seconds from each, by the present and the mean conditions, shape (n,)."""
        turned = {(receiver, sender): bits for (sender, receiver), bits in self._pool.moved(end).items()}
        ways = [moving_seconds(turned, at) + self._beginning(at)[end] for at in self._some(())]
        return np.where(self._pool.changes(end), np.max(ways, axis=0), 0.0)

    def moving_seconds(self, start: int, end: int) -> float:
        """Return the part in which blocks are on the links; 0 without moves."""
        moved = self._pool.moved(start)
        return max(float(moving_seconds(moved, at)[end]) for at in self._some(()))

    def _beginning(self, at: Conditions) -> Floats:
        """Return the seconds of each from the last block's arrival until its pipeline is full, shape (n,)."""
        loads = self._pool.loads
        seconds: Floats = loads.at(at).filling() + CHANGE_TRIPS * loads.round_trip_seconds(at)
        return seconds

    def _some(self, conditions: tuple[Conditions, ...]) -> tuple[Conditions, ...]:
        return conditions or (self._beliefs.now, self._beliefs.mean)
