"""Paths: the place of a device at each second, and their file."""

from dataclasses import dataclass
from pathlib import Path as FilePath

import numpy as np

from benchmarks.rivals.moving.tables import number, rows_of
from edge_agent.planning.measurements import Floats
from shared.errors import PlanError

EARTH_METRES = 6_371_000.0
MOST_SECONDS = 7 * 24 * 3600.0
"""Longest path: a week."""


@dataclass(frozen=True, eq=False)
class Path:
    """Places at rising times, and straight lines between them. Columns of shape (n,), n of 2 or more."""

    seconds: Floats
    latitudes: Floats
    longitudes: Floats

    @property
    def duration_seconds(self) -> int:
        """Return the whole seconds from its beginning to its end."""
        return int(self.seconds[-1] - self.seconds[0])

    def at(self, seconds: Floats) -> tuple[Floats, Floats]:
        """Return latitudes and longitudes. seconds: since the beginning of the path."""
        moments = self.seconds[0] + seconds
        return (
            np.interp(moments, self.seconds, self.latitudes),
            np.interp(moments, self.seconds, self.longitudes),
        )


def load_path(path: FilePath) -> Path:
    """Read a path from a CSV file. PlanError for any error in it."""
    rows: list[tuple[float, float, float]] = []
    for where, row in rows_of(path, "path", ("second", "latitude", "longitude")):
        moment = number(where, row, "second", -1e12, 1e12)
        if rows and moment <= rows[-1][0]:
            raise PlanError(f"{where}: second is {moment:g} after {rows[-1][0]:g}; the times of a path must rise")
        rows.append(
            (moment, number(where, row, "latitude", -90.0, 90.0), number(where, row, "longitude", -180.0, 180.0))
        )
    seconds, latitudes, longitudes = np.array(rows).T
    found = Path(seconds, latitudes, longitudes)
    if not 1.0 <= seconds[-1] - seconds[0] <= MOST_SECONDS:
        raise PlanError(f"{path}: the path takes {seconds[-1] - seconds[0]:g} s; it must take from 1 s to a week")
    return found


def metres_between(latitudes: Floats, longitudes: Floats, to_latitudes: Floats, to_longitudes: Floats) -> Floats:
    """Return the distances on a sphere from each of T places to each of N others, shape (T, N)."""
    here, there = np.radians(latitudes)[:, None], np.radians(to_latitudes)[None, :]
    apart = np.radians(to_longitudes)[None, :] - np.radians(longitudes)[:, None]
    chord = np.sin((there - here) / 2) ** 2 + np.cos(here) * np.cos(there) * np.sin(apart / 2) ** 2
    distances: Floats = 2.0 * EARTH_METRES * np.arcsin(np.sqrt(np.minimum(1.0, chord)))
    return distances
