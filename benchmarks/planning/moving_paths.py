"""Random paths among sites, and the network of a simulated move."""

import math
import random
from collections.abc import Sequence

import numpy as np

from benchmarks.rivals.moving import Backbone, Path, Site
from benchmarks.rivals.moving.paths import metres_between

NETWORK = Backbone(50e6, 200e6)
"""Rates of a 5G cell up and down; trainers have 1 Gbit/s between them, and the cloud is 135 ms away."""


def random_path(draw: random.Random, sites: Sequence[Site], metres_per_second: float, seconds: float) -> Path:
    """Draw straight ways from one random place to the next, within the rectangle around all sites."""
    latitudes, longitudes = [site.latitude for site in sites], [site.longitude for site in sites]

    def place() -> tuple[float, float]:
        return draw.uniform(min(latitudes), max(latitudes)), draw.uniform(min(longitudes), max(longitudes))

    places, moments = [place()], [0.0]
    while moments[-1] < seconds:
        places.append(place())
        before, after = (np.array(each)[:, None] for each in places[-2:])
        metres = float(metres_between(before[0], before[1], after[0], after[1])[0, 0])
        moments.append(moments[-1] + max(1e-3, metres / metres_per_second))
    # The last way ends with the path.
    part = (seconds - moments[-2]) / (moments[-1] - moments[-2])
    (from_latitude, from_longitude), (to_latitude, to_longitude) = places[-2:]
    places[-1] = (
        from_latitude + part * (to_latitude - from_latitude),
        from_longitude + part * (to_longitude - from_longitude),
    )
    moments[-1] = float(math.ceil(seconds))
    return Path(np.array(moments), *np.array(places).T)
