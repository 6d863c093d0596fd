"""Loads of stacked layouts: each worker runs the next blocks on the whole batch. Two workers on one cut are such, too."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edge_agent.planning.cost.conditions import Direction
from edge_agent.planning.cost.loads import Loads, Paths
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Floats, Ints
from edge_agent.planning.profile import NO_MESSAGE, Profile, WorkerProfile


def stacked_loads(
    profile: Profile, places: Sequence[int], cuts: Sequence[Ints], bits: Sequence[Ints], staleness: Ints
) -> Loads:
    """Return the loads of n layouts of the same workers.

    places: of the workers in the profile. cuts: rising, the blocks before each worker but the first, each of shape
    (n,). Only the last may be L, and leaves its worker without blocks. bits: of the features at each cut. staleness: K,
    shape (n,).

    A worker's other work depends on the bytes that it sends and receives.
    """
    blocks, serial = len(profile), staleness == 0
    first = np.zeros_like(staleness)
    ends = [first, *cuts, np.full_like(staleness, blocks)]
    work = {
        place: _table_seconds(profile.workers[place], start, stop, serial)
        for place, (start, stop) in zip(places, pairwise(ends), strict=True)
    }
    carried: dict[Direction, Floats] = {}
    halves: dict[Direction, Floats] = {}
    used: dict[int, list[Bools]] = {place: [] for place in places}
    for (near, far), cut, width in zip(pairwise(places), cuts, bits, strict=True):
        crosses = cut < blocks
        work[near] = work[near] + np.where(crosses, encoding_seconds(profile, cut, width), 0.0)
        feature_bits, gradient_bits = crossing_bits(profile, cut, width)
        carried[near, far] = np.where(crosses, feature_bits, 0.0)
        carried[far, near] = np.where(crosses, gradient_bits, 0.0)
        halves[min(near, far), max(near, far)] = np.where(crosses, 2.0, 0.0)
        for place in (near, far):
            used[place].append(crosses)
    host: dict[int, Floats] = {}
    waited = np.zeros(len(staleness))
    for place in places:
        message = profile.workers[place].message
        if message == NO_MESSAGE:
            continue
        links = np.sum(used[place], axis=0)
        moved = np.sum([each for direction, each in carried.items() if place in direction], axis=0)
        overhead = np.where(links > 0, message.seconds_per_byte / 8 * moved + message.seconds * links, 0.0)
        awaited = np.where(serial, message.waited_seconds * links, overhead)
        host[place] = np.maximum(overhead, awaited)
        waited = waited + awaited
    return Loads(staleness, work, host, carried, Paths(None, work, waited, carried, halves))


def encoding_seconds(profile: Profile, cuts: Ints, bits: Ints) -> Floats:
    """Return the seconds in which a feature is encoded at each cut; 0 for 32 bits, NaN if it was not measured."""
    return np.where(bits < FLOAT32_BITS, profile.encode_seconds[cuts], 0.0)


def crossing_bits(profile: Profile, cuts: Ints, bits: Ints) -> tuple[Floats, Floats]:
    """Return the bits of a feature and of its error gradient at each cut, NaN if they are unknown. bits: of a feature's number.

    Error gradients are as the profile has them (paper 000, 4.4).
    """
    feature_bytes, gradient_bytes = profile.sizes
    return feature_bytes[cuts] * 8 * bits / FLOAT32_BITS, gradient_bytes[cuts] * 8


def _table_seconds(worker: WorkerProfile, first: Ints, stop: Ints, serial: Bools) -> Floats:
    """Return the seconds of the blocks [first, stop); 0 if there are none."""
    seconds = worker.replayed[first, stop]
    if serial.any():
        seconds = np.where(serial, worker.at_once[first, stop], seconds)
    return np.where(first < stop, seconds, 0.0)
