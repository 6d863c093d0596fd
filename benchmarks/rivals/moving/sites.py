"""Sites: trainers at known places, and their file."""

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals.moving.tables import number, optional_number, rows_of
from shared.errors import PlanError

RADII_METRES = (300.0, 500.0)
"""Radius of a site that has none of its own: between these (paper 003, 5.1)."""
FACTORS = (1.0, 0.7)
"""Ratio of its times to those of the profile's trainer: one of these, as two kinds of GPU are."""
TRIP_SECONDS = (0.005, 0.040)
"""Round trip at the site and at its radius (paper 003, 5.1)."""
MBIT = 1e6
MOST_SITES = 10_000


@dataclass(frozen=True)
class Site:
    """A trainer that can be reached within a radius."""

    name: str
    latitude: float
    longitude: float
    radius_metres: float
    round_trip_seconds: float | None = None
    """Round trip anywhere; None: it grows from the site to its radius."""
    cloud_factor: float = 1.0
    uplink: float | None = None
    """Bits per second; None: as of every site."""
    downlink: float | None = None


def load_sites(path: Path, seed: int = 0) -> list[Site]:
    """Read sites from a CSV file. seed: of the radii and factors that it has not. PlanError for any error in it."""
    draw, found, names = random.Random(seed), list[Site](), set[str]()
    for where, row in rows_of(path, "list of sites", ("SITE_ID", "LATITUDE", "LONGITUDE")):
        name = (row["SITE_ID"] or "").strip()
        if not 1 <= len(name) <= 100 or name in names:
            raise PlanError(f'{where}: SITE_ID is "{name[:40]}"; each site needs a name of its own')
        names.add(name)
        radius, factor = draw.uniform(*RADII_METRES), draw.choice(FACTORS)
        trip_ms = optional_number(where, row, "round_trip_ms", 0.0, 60_000.0)
        up, down = (optional_number(where, row, f"{way}link_mbit", 1e-6, 1e6) for way in ("up", "down"))
        given_radius = optional_number(where, row, "radius_m", 1.0, 1e6)
        given_factor = optional_number(where, row, "cloud_factor", 1e-3, 1e3)
        found.append(
            Site(
                name,
                number(where, row, "LATITUDE", -90.0, 90.0),
                number(where, row, "LONGITUDE", -180.0, 180.0),
                radius if given_radius is None else given_radius,
                None if trip_ms is None else trip_ms / 1e3,
                factor if given_factor is None else given_factor,
                None if up is None else up * MBIT,
                None if down is None else down * MBIT,
            )
        )
        if len(found) > MOST_SITES:
            raise PlanError(f"{path}: there are more than {MOST_SITES} sites; leave out those far from the path")
    return found
