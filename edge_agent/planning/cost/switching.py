"""Switching: the transfers when another layout comes into force (paper 000, Eq. 13), or another trainer (paper 003).

A block is sent once, straight from its owner to the next one. What lies with a trainer out of reach comes through another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_agent.planning.cost.conditions import Conditions, Direction
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import Floats, Ints
from edge_agent.planning.profile import Profile
from shared.placement import moves

Runs = tuple[Ints, Ints]
"""The blocks [first, stop) of each worker. Shapes (W,) for one layout, (W, n) for many."""

LEAST_BITS = 1e-9
"""Bits of a block without weights. It has to be requested, too."""
HANDOVER_TRIPS = 3
"""Round trips of a handover beside the request of blocks: drained, committed, dialled."""
BETWEEN_RATE = 1e9
"""Bits per second assumed from trainer to trainer."""
LOST_RATE = 1.0
"""Bits per second assumed to the device alone, of what lies with a trainer that is lost: all others come first."""


@dataclass(frozen=True, eq=False)
class DeviceLinks:
    """The links of a device to each of N candidates, shape (N,). To itself, which may be one of them, rates are endless."""

    uplinks: Floats
    """Bits per second; 0 out of reach, as is the downlink."""
    downlinks: Floats
    trips: Floats
    """Round trips in seconds."""


def runs_of(profile: Profile, layouts: Sequence[Layout]) -> Runs:
    """Return the blocks of each worker, of layouts that are stacked. Shapes (W, n)."""
    places = {name: place for place, name in enumerate(profile.names)}
    first = np.zeros((len(places), len(layouts)), dtype=np.int64)
    stop = np.zeros_like(first)
    for number, layout in enumerate(layouts):
        for tile in layout.tiles:
            place = places[tile.worker]
            first[place, number], stop[place, number] = tile.first, tile.stop
    return first, stop


def moved_bits(profile: Profile, before: Runs, after: Runs) -> dict[Direction, Floats]:
    """Return the bits of the blocks that move from one worker to another, by direction. Shape (n,), or as both broadcast."""
    bytes_before, workers = profile.bytes_before, range(len(before[0]))
    moved = {}
    for sender in workers:
        for receiver in workers:
            if sender == receiver:
                continue
            first = np.maximum(before[0][sender], after[0][receiver])
            stop = np.minimum(before[1][sender], after[1][receiver])
            bits = 8 * (bytes_before[stop] - bytes_before[first])
            moved[sender, receiver] = np.where(stop > first, np.maximum(bits, LEAST_BITS), 0.0)
    return moved


def bits_between(profile: Profile, before: Layout, after: Layout) -> dict[Direction, float]:
    """Return the same for any two layouts, from the moves between their placements."""
    places = {name: place for place, name in enumerate(profile.names)}
    found: dict[Direction, float] = {}
    for one in moves(before.placement(profile.names), after.placement(profile.names)):
        direction = places[one.sender], places[one.receiver]
        found[direction] = found.get(direction, 0.0) + 8 * profile.blocks[one.block].bytes
    return found


def moving_seconds(moved: Mapping[Direction, Floats], at: Conditions) -> Floats:
    """Return the seconds until all blocks have moved, shape (n,). Links carry side by side, and a request takes a round
    trip; 0 without moves."""
    ways = []
    for (sender, receiver), bits in moved.items():
        trip = at.trips[..., min(sender, receiver), max(sender, receiver)]
        ways.append(np.where(bits > 0.0, bits / at.rates[..., sender, receiver] + trip, 0.0))
    return np.max(ways, axis=0) if ways else np.zeros(1)


def handed_over_bits(profile: Profile, before: tuple[int, int], after: tuple[Ints, Ints]) -> dict[Direction, Floats]:
    """Return the bits that move from a candidate with its cut to each of N others with theirs, shape (N,).

    By direction between the device, 0, the trainer before, 1, and the one after, 2.
    """
    (here, cut), (others, cuts), blocks = before, after, len(profile)
    stays = others == here
    begins = np.array([0, cut, blocks])[:, None], np.array([cut, blocks, blocks])[:, None]
    first = np.stack([np.zeros_like(cuts), np.where(stays, cuts, blocks), np.where(stays, blocks, cuts)])
    return moved_bits(profile, begins, (first, np.stack([cuts, *np.full((2, len(cuts)), blocks)])))


def handover_seconds(
    profile: Profile,
    links: DeviceLinks,
    before: tuple[int, int],
    after: tuple[Ints, Ints],
    between_rate: float = BETWEEN_RATE,
    lost_rate: float = LOST_RATE,
) -> Floats:
    """Return the seconds until all blocks are there, and all workers have committed, shape (N,).

    before, after: as for `handed_over_bits`; candidates are those of links. between_rate: bits per second from trainer to
    trainer. lost_rate: see `LOST_RATE`.
    """
    (here, _), (others, cuts) = before, after
    moved = handed_over_bits(profile, before, after)
    down, is_lost = links.downlinks[others], links.downlinks[here] <= 0.0
    through = np.minimum(between_rate, np.where(np.isfinite(down), down, lost_rate))
    rates, trips = np.full((len(cuts), 3, 3), between_rate), np.zeros((len(cuts), 3, 3))
    rates[:, 0, 1], rates[:, 1, 0] = links.uplinks[here], through if is_lost else links.downlinks[here]
    rates[:, 0, 2], rates[:, 2, 0] = links.uplinks[others], down
    longest = np.maximum(links.trips[others], 0.0 if is_lost else links.trips[here])
    trips[...] = longest[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        moving = moving_seconds(moved, Conditions(rates, trips, np.ones(3)))
    seconds: Floats = moving + HANDOVER_TRIPS * longest
    return seconds
