"""DynaComm: the partition of least time under a barrier, in both directions (paper 002, Alg. 3 and 4).

The dynamic programs of the paper take O(L^3). The cost is the largest of the segments' terms, so a limit on it is tried
instead: the longest segment within a limit is never worse than a shorter one, since it leaves fewer messages and more
computing to hide the next one behind. A try that fails says the next value that a term can have, and one that succeeds the
value that it reached. The tries end where the two meet, so the result is exact.
"""

import math
from bisect import bisect_right

from edge_agent.planning.schedules.direction import Bounds, Direction


def dynacomm(direction: Direction) -> Bounds:
    """Return the partition of least time, and of the fewest messages among these."""
    best = min((0, len(direction)), tuple(range(len(direction) + 1)), key=direction.exposed_seconds)
    lower, upper = _floor(direction), direction.exposed_seconds(best)
    tried = lower
    while lower <= upper:
        found, value = _within(direction, tried)
        if found is None:
            lower = value
        else:
            best, upper = found, value
            if tried <= lower:
                break
        tried = max(lower, min(lower + (upper - lower) / 2, math.nextafter(upper, -math.inf)))
    return best


def _floor(direction: Direction) -> float:
    """Return a value that no partition is below: each layer comes in some message, behind those before it."""
    before, compute = direction.transfer_before, direction.compute_before
    return direction.message_seconds + max(before[layer + 1] - compute[layer] for layer in range(len(direction)))


def _within(direction: Direction, limit: float) -> tuple[Bounds | None, float]:
    """Return the partition whose terms are all within a limit, and the largest of them.

    Where there is none: None, and the least limit that could have one.
    """
    before, compute, message = direction.transfer_before, direction.compute_before, direction.message_seconds
    layers = len(direction)
    bounds, first, taken, reached, next_limit = [0], 0, 0.0, -math.inf, math.inf
    while first < layers:
        taken = len(bounds) * message
        hidden = compute[first]
        stop = bisect_right(before, limit + hidden - taken) - 1
        # The limit is judged by the term itself, because sums round.
        while stop < layers and taken + before[stop + 1] - hidden <= limit:
            stop += 1
        while stop > first and taken + before[stop] - hidden > limit:
            stop -= 1
        if stop < layers:
            next_limit = min(next_limit, taken + before[max(stop, first) + 1] - hidden)
        if stop <= first:
            return None, next_limit
        reached = max(reached, taken + before[stop] - hidden)
        bounds.append(stop)
        first = stop
    return tuple(bounds), reached
