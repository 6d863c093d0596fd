"""View of a run on the world at one second, and the handovers from there."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.rivals.moving.world import Window, World
from edge_agent.planning.cost import LOST_RATE, handed_over_bits, handover_seconds
from edge_agent.planning.engine.prospects import DEVICE, Place
from edge_agent.planning.measurements import Floats, Ints


@dataclass(frozen=True, eq=False)
class Look:
    """One second, and where the run is then."""

    world: World
    window: Window
    moment: int
    """Second within the window."""
    steps: float
    """Steps done so far."""
    place: Place | None
    """Candidate and layout today; None before the beginning."""
    total_seconds: float
    """T_sum of today's layout when it was in reach last: what its batches in flight have cost."""

    @property
    def second(self) -> int:
        """Return the second of the path."""
        return self.window.begin + self.moment

    @property
    def best_seconds(self) -> Floats:
        """Return the seconds a step with the best layout of each candidate, shape (N,); infinite out of reach."""
        seconds: Floats = self.window.best_seconds[self.moment]
        return seconds

    @property
    def best_rows(self) -> Ints:
        """Return these layouts, shape (N,)."""
        rows: Ints = self.window.best_rows[self.moment]
        return rows

    @cached_property
    def sites(self) -> Ints:
        """Return the places of the sites in reach, the nearest first."""
        metres = self.window.metres[self.moment]
        reached = np.flatnonzero(self.window.in_reach[self.moment, 1:-1])
        return 1 + reached[np.argsort(metres[reached], kind="stable")]

    @cached_property
    def seconds_per_step(self) -> float:
        """Return the seconds a step today; infinite where the trainer is out of reach."""
        assert self.place is not None
        return self.window.seconds_of(self.moment, *self.place)

    def best(self, candidate: int) -> Place:
        """Return a candidate with its best layout."""
        return Place(candidate, int(self.best_rows[candidate]))

    def moved_bits(self, candidate: int, row: int) -> float:
        """Return the bits that move on the way to a candidate with a layout."""
        assert self.place is not None
        pairs, (here, now) = self.world.pairs, self.place
        after = np.array([candidate]), pairs.cuts[[row]]
        moved = handed_over_bits(pairs.profile, (here, int(pairs.cuts[now])), after)
        return sum(float(bits[0]) for bits in moved.values())

    def pauses(self, candidates: Ints, rows: Ints) -> tuple[Floats, Floats]:
        """Return the seconds for which training pauses on the way to each, and those of the blocks' way. Arrays of one shape.

        The batches in flight are done before, and then the pipeline fills again. With a trainer that is out of reach they are
        lost, and computed again.
        """
        assert self.place is not None
        pairs, network, (here, row) = self.world.pairs, self.world.network, self.place
        moving = handover_seconds(
            pairs.profile,
            self.window.links(self.moment),
            (here, int(pairs.cuts[row])),
            (candidates, pairs.cuts[rows]),
            network.between,
            network.downlink or LOST_RATE,
        )
        lost = 0.0 if np.isfinite(self.seconds_per_step) else self.total_seconds
        return moving + self.window.filling(self.moment, candidates, rows) + lost, moving


def fastest(look: Look, candidates: Ints) -> Place:
    """Return the fastest of some candidates with its best layout; the device alone where there are none."""
    if not len(candidates):
        return look.best(DEVICE)
    return look.best(int(candidates[np.argmin(look.best_seconds[candidates])]))
