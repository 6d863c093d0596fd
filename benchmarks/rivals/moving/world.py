"""The world of a device on a path: the trainers in reach at each second, and the seconds of a step with each.

Candidates have places: the device alone is 0, sites follow in the order of their file, and the cloud is last. It is in reach
everywhere. Seconds are worked through in windows, all candidates of a window at once, because there may be a week of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.rivals.moving.paths import Path, metres_between
from benchmarks.rivals.moving.sites import TRIP_SECONDS, Site
from edge_agent.planning.candidates import stacked_conditions
from edge_agent.planning.cost import BETWEEN_RATE, DeviceLinks, steady_seconds
from edge_agent.planning.engine.prospects import DEVICE
from edge_agent.planning.families.pair import Pairs
from edge_agent.planning.measurements import Bools, Floats, Ints
from shared.errors import PlanError

CLOUD = "cloud"
WINDOW_SECONDS = 600
MOST_ENTRIES = 4_000_000
"""Layouts with candidates at seconds that a window holds at most, unless one second has more."""


@dataclass(frozen=True)
class Backbone:
    """Links that no site has of its own."""

    uplink: float | None
    """Bits per second from the device to the cloud, and to a site that has no rate of its own."""
    downlink: float | None
    between: float = BETWEEN_RATE
    """Bits per second from trainer to trainer."""
    cloud_round_trip_seconds: float = 0.135
    relay: bool = False
    """True if a site out of reach is reached through one in reach."""


@dataclass(frozen=True, eq=False)
class Window:
    """T seconds of the world, from `begin` on. N candidates, n layouts, F pairs of a second and a trainer in reach."""

    begin: int
    metres: Floats
    """Distance to each site, shape (T, S)."""
    in_reach: Bools
    """True where the device itself reaches a candidate, shape (T, N)."""
    uplinks: Floats
    """Bits per second, shape (T, N); 0 out of reach."""
    downlinks: Floats
    trips: Floats
    """Round trips in seconds, shape (T, N)."""
    index: Ints
    """Row of each in the tables, shape (T, N); -1 out of reach."""
    seconds: Floats
    """Seconds a step, shape (F, n); infinite where a layout may not be chosen there."""
    longest: Floats
    """T_max, shape (F, n)."""
    total: Floats
    """T_sum, shape (F, n)."""

    def __len__(self) -> int:
        """Return T."""
        return len(self.index)

    @cached_property
    def best_rows(self) -> Ints:
        """Return the best layout of each candidate, shape (T, N)."""
        rows: Ints = np.argmin(self.seconds, axis=-1)[self.index]
        return rows

    @cached_property
    def best_seconds(self) -> Floats:
        """Return the seconds a step with that, shape (T, N); infinite out of reach."""
        return np.where(self.index >= 0, np.min(self.seconds, axis=-1)[self.index], np.inf)

    def by_row(self, moment: int) -> Floats:
        """Return the seconds a step of all layouts with all candidates, shape (N, n)."""
        places = self.index[moment]
        return np.where((places >= 0)[:, None], self.seconds[places], np.inf)

    def links(self, moment: int) -> DeviceLinks:
        """Return the links to all candidates."""
        return DeviceLinks(self.uplinks[moment], self.downlinks[moment], self.trips[moment])

    def seconds_of(self, moment: int, candidate: int, row: int) -> float:
        """Return the seconds a step of one layout; infinite out of reach. moment: within the window."""
        place = int(self.index[moment, candidate])
        return float(self.seconds[place, row]) if place >= 0 else float("inf")

    def total_of(self, moment: int, candidate: int, row: int) -> float:
        """Return its T_sum; 0 out of reach."""
        place = int(self.index[moment, candidate])
        return float(self.total[place, row]) if place >= 0 else 0.0

    def filling(self, moment: int, candidates: Ints, rows: Ints) -> Floats:
        """Return the seconds until an empty pipeline of each is full; 0 out of reach."""
        places = self.index[moment, candidates]
        filling = np.maximum(0.0, self.total[places, rows] - self.longest[places, rows])
        return np.where(places >= 0, filling, 0.0)


class World:
    """A path among sites, and the cloud."""

    def __init__(self, pairs: Pairs, sites: Sequence[Site], path: Path, network: Backbone) -> None:
        """PlanError where the rates of a site or of the cloud are unknown, where a site has the name of another candidate, and
        where no site is in reach at the beginning."""
        self.pairs, self.network = pairs, network
        self.names = (pairs.profile.names[0], *(site.name for site in sites), CLOUD)
        if taken := {self.names[DEVICE], CLOUD} & {site.name for site in sites}:
            raise PlanError(f'a site is named "{min(taken)}", as the device or the cloud is; give it another name')
        self.sites, self._path = sites, path
        self._latitudes = np.array([site.latitude for site in sites])
        self._longitudes = np.array([site.longitude for site in sites])
        self._radii = np.array([site.radius_metres for site in sites])
        self._uplinks = np.array([*(_known(site.uplink, network.uplink, site.name, "uplink") for site in sites),
                                  _known(None, network.uplink, CLOUD, "uplink")])  # fmt: skip
        self._downlinks = np.array([*(_known(site.downlink, network.downlink, site.name, "downlink") for site in sites),
                                    _known(None, network.downlink, CLOUD, "downlink")])  # fmt: skip
        self._trips = np.array([-1.0 if (own := site.round_trip_seconds) is None else own for site in sites])
        self.factors = np.array([1.0, *(site.cloud_factor for site in sites), 1.0])
        """Ratio of each candidate's times to those of the profile's trainer, shape (N,)."""
        first = self._metres(0, 1)[0]
        if not (first <= self._radii).any():
            nearest = int(np.argmin(first - self._radii))
            raise PlanError(
                f"no site is in reach at the beginning of the path; {sites[nearest].name} is {first[nearest]:,.0f} m away and "
                f"reaches {self._radii[nearest]:,.0f} m"
            )

    @property
    def seconds(self) -> int:
        """Return the length of the path."""
        return self._path.duration_seconds

    def windows(self) -> Iterator[Window]:
        """Yield the whole path, one window after another."""
        longest = max(1, min(WINDOW_SECONDS, MOST_ENTRIES // len(self.names)))
        for begin in range(0, self.seconds, longest):
            yield from self._split(begin, min(self.seconds, begin + longest))

    def _split(self, begin: int, end: int) -> Iterator[Window]:
        metres = self._metres(begin, end)
        in_reach = metres <= self._radii
        places = in_reach.size if self.network.relay else int(np.count_nonzero(in_reach))
        if places * len(self.pairs) > MOST_ENTRIES and end > begin + 1:
            middle = (begin + end) // 2
            yield from self._split(begin, middle)
            yield from self._split(middle, end)
        else:
            yield self._window(begin, metres, in_reach)

    def _metres(self, begin: int, end: int) -> Floats:
        places = self._path.at(np.arange(begin, end, dtype=np.float64))
        return metres_between(*places, self._latitudes, self._longitudes)

    def _window(self, begin: int, metres: Floats, in_reach: Bools) -> Window:
        trips = np.where(self._trips < 0.0, np.interp(metres / self._radii, (0.0, 1.0), TRIP_SECONDS), self._trips)
        cloud = np.ones((len(metres), 1))
        near = np.hstack([in_reach, cloud > 0.0])
        uplinks, downlinks = np.where(near, self._uplinks, 0.0), np.where(near, self._downlinks, 0.0)
        trips = np.hstack([trips, cloud * self.network.cloud_round_trip_seconds])
        reached = near
        if self.network.relay:
            reached = self._relay(in_reach, uplinks, downlinks, trips)
        where = np.nonzero(reached)
        factors = self.factors[1:][where[1]]
        at = stacked_conditions(uplinks[where], downlinks[where], trips[where], factors)
        longest, total = self.pairs.loads.at(at)
        seconds = steady_seconds(longest, total, self.pairs.loads.ahead)
        alone = self.pairs.is_alone
        index = np.full((len(metres), len(self.names)), -1)
        index[where[0], where[1] + 1] = np.arange(len(where[0]))
        if alone.any():  # the last row of the tables is the device's, because all cuts of it use no link
            index[:, DEVICE] = len(where[0])
        only = np.where(alone, seconds[-1:], np.inf)
        return Window(
            begin,
            metres,
            np.hstack([cloud > 0.0, near]),
            np.hstack([cloud * np.inf, uplinks]),
            np.hstack([cloud * np.inf, downlinks]),
            np.hstack([cloud * 0.0, trips]),
            index,
            np.vstack([np.where(alone, np.inf, seconds), only]),
            np.vstack([longest, longest[-1:]]),
            np.vstack([total, total[-1:]]),
        )

    def _relay(self, in_reach: Bools, uplinks: Floats, downlinks: Floats, trips: Floats) -> Bools:
        """Give each site out of reach the rates of the best in reach, which relays to it. Returns all that are reached."""
        rates = np.where(in_reach, np.minimum(self._uplinks, self._downlinks)[:-1], -1.0)
        is_fastest = in_reach & (rates == rates.max(axis=1)[:, None])
        best = np.argmin(np.where(is_fastest, trips[:, :-1], np.inf), axis=1)
        seconds = np.arange(len(in_reach))
        has_any: Bools = np.asarray(in_reach.any(axis=1))
        far = ~in_reach & has_any[:, None]
        for each in (uplinks, downlinks):
            each[:, :-1] = np.where(far, each[seconds, best][:, None], each[:, :-1])
        trips[:, :-1] = np.where(far, trips[seconds, best][:, None], trips[:, :-1])
        return np.hstack([in_reach | far, np.ones((len(in_reach), 1), dtype=np.bool_)])


def _known(own: float | None, of_all: float | None, name: str, way: str) -> float:
    rate = of_all if own is None else own
    if rate is None:
        raise PlanError(f'nothing is known of the {way} of "{name}"; give --{way}')
    return rate
