"""Switching: the transfers when another layout comes into force (paper 000, Eq. 13).

A block is sent once, straight from its owner to the next one.
"""

from collections.abc import Mapping, Sequence

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
    bytes_before, workers = profile.bytes_before, range(len(profile.workers))
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
        trip = at.trips[min(sender, receiver), max(sender, receiver)]
        ways.append(np.where(bits > 0.0, bits / at.rates[sender, receiver] + trip, 0.0))
    return np.max(ways, axis=0) if ways else np.zeros(1)
