"""Policies of a simulated move: each chooses the next candidate, and the layout with it.

`best` and `edgemove` are those of the choice of a run. The others are what they are judged by.
"""

import random
from typing import Protocol

import numpy as np

from benchmarks.rivals.moving.look import Look, fastest
from benchmarks.rivals.moving.world import World
from edge_agent.planning.engine.best import Best
from edge_agent.planning.engine.prospects import DEVICE, Place, Seen
from edge_agent.planning.measurements import Floats
from edge_agent.planning.papers.edgemove import EdgeMove

PROBE_SECONDS = 10
"""Interval of probes."""
PROBE_BYTES = 512
"""Bytes of a probe and its answer."""
RATE_PROBE_BYTES = 128 * 1024
"""Bytes with which the rates of a link are measured, both ways."""
RATE_PROBED = 3
"""Candidates of which the rates are probed: the best of them."""
RATE_PROBE_SECONDS = 600
"""Time after which they are probed again."""


class Follower(Protocol):
    """A policy of a simulated move."""

    probe_bytes: int
    tunes: bool
    """True if the engine tunes cut, bits and K with the trainer that it has."""

    def start(self, look: Look) -> Place:
        """Return the beginning."""

    def follow(self, look: Look) -> Place | None:
        """Return where to go, or None to stay. It is asked each second in which training does not pause."""

    def note_moved(self, second: int, place: Place) -> None:
        """Learn where training goes on."""


class Kept:
    """One candidate, from beginning to end."""

    tunes = True

    def __init__(self, candidate: int) -> None:
        self._candidate, self.probe_bytes = candidate, 0

    def start(self, look: Look) -> Place:
        """Return the candidate with its best layout."""
        return look.best(self._candidate)

    def follow(self, look: Look) -> Place | None:  # noqa: ARG002
        """Return None."""
        return None

    def note_moved(self, second: int, place: Place) -> None:
        """Ignore it."""


class Sticky(Kept):
    """The fastest site in reach, until it is out of reach."""

    def __init__(self) -> None:
        super().__init__(DEVICE)

    def start(self, look: Look) -> Place:
        """Return the fastest site."""
        self.probe_bytes += PROBE_BYTES * len(look.sites)
        return fastest(look, look.sites)

    def follow(self, look: Look) -> Place | None:
        """Go to the fastest site where today's is out of reach."""
        assert look.place is not None
        alone_with_site = look.place.candidate == DEVICE and len(look.sites)
        return self.start(look) if alone_with_site or not np.isfinite(look.seconds_per_step) else None


class Nearest(Sticky):
    """The nearest site."""

    def start(self, look: Look) -> Place:
        """Return the nearest site."""
        return fastest(look, look.sites[:1])

    def follow(self, look: Look) -> Place | None:
        """Go to the nearest site."""
        assert look.place is not None
        place = self.start(look)
        return None if place.candidate == look.place.candidate else place


class PipeDreamE(Sticky):
    """A site by chance until it is out of reach, with the cut that balances computing alone (paper 003, 5.1)."""

    tunes = False

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def start(self, look: Look) -> Place:
        """Return a site by chance."""
        if not len(look.sites):
            return look.best(DEVICE)
        site = int(look.sites[self._draw.randrange(len(look.sites))])
        pairs = look.world.pairs
        device, trainer = (pairs.loads.work[place] for place in (0, 1))
        busiest = np.maximum(device, trainer * look.world.factors[site])
        widest = pairs.bits == pairs.bits.max()
        allowed = widest & ~pairs.is_alone & (pairs.staleness == pairs.staleness.max())
        return Place(site, int(np.argmin(np.where(allowed, busiest, np.inf))))


class Probing:
    """A policy of a run, which sees what probes have shown."""

    def __init__(self, policy: Best | EdgeMove, world: World) -> None:
        self._policy = policy
        self._seconds: Floats = np.full(len(world.names), np.inf)
        self._probed_at = -PROBE_SECONDS
        self._rated_at = np.full(len(world.names), -RATE_PROBE_SECONDS)
        self.probe_bytes = 0

    def proposal(self, look: Look) -> Place | None:
        """Return the policy's proposal by what is known."""
        is_lost = look.place is not None and not np.isfinite(look.seconds_per_step)
        if is_lost or look.second - self._probed_at >= PROBE_SECONDS:
            self.probe(look)
        seconds = self._seconds.copy()
        if look.place is not None:
            seconds[look.place.candidate] = look.seconds_per_step
        return self._policy.observe(self._seen(look, seconds))

    def probe(self, look: Look) -> None:
        """Probe all in reach; of the best also the rates, if that was long ago."""
        self._seconds, self._probed_at = look.best_seconds, look.second
        trainers = np.flatnonzero(np.isfinite(self._seconds[1:])) + 1
        best = trainers[np.argsort(self._seconds[trainers], kind="stable")[:RATE_PROBED]]
        old = best[look.second - self._rated_at[best] >= RATE_PROBE_SECONDS]
        self._rated_at[old] = look.second
        self.probe_bytes += PROBE_BYTES * len(trainers) + RATE_PROBE_BYTES * len(old)

    def note_moved(self, second: int, place: Place) -> None:
        """Learn where training goes on."""
        self._policy.note_moved(float(second), place.candidate)

    def _seen(self, look: Look, seconds: Floats) -> Seen:
        window, moment = look.window, look.moment
        everyone, none = np.arange(len(seconds)), np.zeros(len(seconds))
        pauses, moving = none, none
        if look.place is not None:
            pauses, moving = look.pauses(everyone, look.best_rows)
        factors = np.where(window.in_reach[moment], look.world.factors, np.inf)
        factors[[DEVICE, -1]] = np.inf
        return Seen(
            seconds=float(look.second),
            steps=look.steps,
            by_row=window.by_row(moment),
            rows=look.best_rows,
            step_seconds=seconds,
            handover_seconds=pauses,
            moving_seconds=moving,
            factors=factors,
            trip_seconds=window.trips[moment],
        )


class BestFollower(Probing):
    """The policy `best`, among sites, the cloud and the device alone."""

    tunes = True

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, look: Look) -> Place:
        """Return the fastest."""
        place = look.best(int(np.argmin(look.best_seconds)))
        super().__init__(Best(len(self._world.names), place.candidate), self._world)
        return place

    def follow(self, look: Look) -> Place | None:
        """Go where the policy says; a candidate that cannot be dialled is probed again."""
        place = self.proposal(look)
        if place is not None and not np.isfinite(look.best_seconds[place.candidate]):
            self.probe(look)
            return None
        return place


class EdgeMoveFollower(Probing):
    """The policy `edgemove`, among sites; bits and K are the best at its cut."""

    tunes = False

    def __init__(self, world: World, draw: random.Random) -> None:
        super().__init__(EdgeMove.of(world.pairs, draw), world)

    def start(self, look: Look) -> Place:
        """Return the site with the fastest probe, and its first cut."""
        return self.follow(look) or look.best(DEVICE)

    def follow(self, look: Look) -> Place | None:
        """Go where the policy says. It knows sites alone, so without any the device is alone."""
        if not len(look.sites):
            return None if look.place is None or look.place.candidate == DEVICE else look.best(DEVICE)
        return self.proposal(look)
