"""Conditions: the links and devices at one moment, as numbers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from edge_agent.planning.measurements import Floats
from edge_agent.planning.profile import Hop, Profile
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


def unmeasured_links(profile: Profile) -> list[Direction]:
    """List the links that the profile says nothing of, the worker nearer to the samples first."""
    pairs = combinations(range(len(profile.names)), 2)
    return [(near, far) for near, far in pairs if profile.link(profile.names[near], profile.names[far]) is None]


def through_others(links: Iterable[Direction], rates: Floats, trips: Floats) -> None:
    """Set the rates and round trips of these links to those of the path through all workers between, if there are any."""
    for near, far in links:
        if far > near + 1:
            hops = list(pairwise(range(near, far + 1)))
            rates[near, far] = min(rates[hop] for hop in hops)
            rates[far, near] = min(rates[hop[::-1]] for hop in hops)
            trips[near, far] = sum(trips[hop] for hop in hops)


def conditions_of(profile: Profile, links: Mapping[Hop, Rates] | None = None) -> Conditions:
    """Return the links as measured, on devices as measured. links: those with other rates, up from the first.

    An unknown link is the path through all workers between.
    """
    names, given = profile.names, links or {}
    count = len(names)
    rates, trips = np.full((count, count), UNKNOWN_RATE), np.zeros((count, count))
    for near, far in combinations(range(count), 2):
        hop = names[near], names[far]
        if (now := given.get(hop)) is not None:
            rates[near, far], rates[far, near], trips[near, far] = now.uplink, now.downlink, now.round_trip_seconds
        elif (known := profile.link(*hop)) is not None:
            rates[near, far], rates[far, near] = known.uplink or UNKNOWN_RATE, known.downlink or UNKNOWN_RATE
            trips[near, far] = known.round_trip_seconds or 0.0
    unknown = [(near, far) for near, far in unmeasured_links(profile) if (names[near], names[far]) not in given]
    through_others(unknown, rates, trips)
    return Conditions(rates, trips, np.ones(count))
