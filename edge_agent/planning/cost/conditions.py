"""Conditions: the links and devices at one moment, as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from edge_agent.planning.measurements import Floats
from edge_agent.planning.profile import Hop, MeasuredLink, Profile
from edge_agent.planning.rates import Rates

Direction = tuple[int, int]
"""Two workers by their places in the profile, the sender first."""

UNKNOWN_RATE = 1e-30
"""Bits per second of an unknown link: no search chooses what would use it."""


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions between W workers, in the order of the profile. With a leading axis, conditions of many moments."""

    rates: Floats
    """Bits per second from the first worker to the second, shape (W, W)."""
    trips: Floats
    """Seconds there and back, shape (W, W). Of the two entries of a pair, the first worker's counts."""
    factors: Floats
    """Ratio of each worker's present times to the measured ones, shape (W,)."""

    def link(self, near: int, far: int) -> Rates:
        """Return the link between two workers, up from the first."""
        travel_seconds = float(self.trips[min(near, far), max(near, far)])
        return Rates(float(self.rates[near, far]), float(self.rates[far, near]), travel_seconds)


def conditions_of(profile: Profile, links: Mapping[Hop, Rates] | None = None) -> Conditions:
    """Return the links as measured, on devices as measured. links: those with other rates, up from the first.

    An unknown link is the path through all workers between.
    """
    if links:
        now = {hop: MeasuredLink(one.uplink, one.downlink, one.round_trip_seconds) for hop, one in links.items()}
        profile = profile.with_links(now)
    names = profile.names
    count = len(names)
    rates, trips = np.full((count, count), UNKNOWN_RATE), np.zeros((count, count))
    for near, far in combinations(range(count), 2):
        if (way := profile.way(names[near], names[far])) is not None:
            rates[near, far], rates[far, near] = way.uplink or UNKNOWN_RATE, way.downlink or UNKNOWN_RATE
            trips[near, far] = way.round_trip_seconds or 0.0
    return Conditions(rates, trips, np.ones(count))
