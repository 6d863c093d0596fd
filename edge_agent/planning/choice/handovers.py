"""Handovers: the blocks that move between the device and two trainers, and the pause of training."""

from dataclasses import dataclass

import numpy as np

from edge_agent.planning.measurements import Floats, Ints
from edge_agent.planning.profile import Profile

TRIPS = 4
"""Round trips of a handover: drained, sent, committed, dialled."""


@dataclass(frozen=True)
class Backbone:
    """Links that no site has of its own."""

    uplink: float | None
    """Bits per second from the device to the cloud, and to a site that has no rate of its own."""
    downlink: float | None
    between: float = 1e9
    """Bits per second from trainer to trainer."""
    cloud_round_trip_seconds: float = 0.135
    relay: bool = False
    """True if a site out of reach is reached through one in reach."""


@dataclass(frozen=True)
class End:
    """One end of a handover, or several: a candidate, its cut, and its link. Each a number, or an array of shape (N,)."""

    candidates: Ints
    cuts: Ints
    uplinks: Floats
    downlinks: Floats
    trips: Floats
    """Round trips. Rates of 0 mean that it is out of reach."""


@dataclass(frozen=True)
class Moved:
    """Bytes that move, and the seconds until the last has arrived and all are committed, each of shape (N,)."""

    total_bytes: Floats
    seconds: Floats


def moved(profile: Profile, network: Backbone, before: End, after: End) -> Moved:
    """Return what moves from one trainer to each of N others, straight from the one that has it.

    Blocks go between trainers at the rate between them, and between the device and a trainer over its link. What lies with
    a trainer out of reach comes through another one.
    """
    held, blocks = profile.bytes_before, len(profile)
    stays = before.candidates == after.candidates
    far = np.maximum(before.cuts, after.cuts)
    sent = np.where(stays, 0.0, held[blocks] - held[far])
    given = np.maximum(0.0, held[before.cuts] - held[np.minimum(before.cuts, after.cuts)])
    taken = np.maximum(0.0, held[far] - held[before.cuts])
    is_lost = before.downlinks <= 0.0
    through = np.minimum(
        network.between, np.where(np.isfinite(after.downlinks), after.downlinks, network.downlink or 1.0)
    )
    down = np.where(is_lost, through, before.downlinks)
    with np.errstate(divide="ignore", invalid="ignore"):
        ways = [
            np.where(sent > 0.0, 8.0 * sent / network.between, 0.0),
            np.where(given > 0.0, 8.0 * given / after.uplinks, 0.0),
            np.where(taken > 0.0, 8.0 * taken / down, 0.0),
        ]
    trips = TRIPS * np.maximum(after.trips, np.where(is_lost, 0.0, before.trips))
    return Moved(sent + given + taken, np.max(ways, axis=0) + trips)
