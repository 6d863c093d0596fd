"""DynaComm (paper 002): what one direction of a step takes under a barrier, and the partition of least time (Alg. 3 and 4).

The cost is that of III, A: messages go one after the other, each takes the seconds of its layers and a constant, and a layer is
computed once its segment has come. Eq. 13 comes to

    compute + min over partitions of max over segments j of (j * message + transfer before its end - compute before its begin)

Pushes are pulls in a film that runs backward, so Eq. 14 is the same with the seconds of pushes and of the backward pass, and
the segments are still counted from the first layer.

The dynamic programs of the paper take O(L^3). The cost is the largest of the segments' terms, so a limit on it is tried
instead: the longest segment within a limit is never worse than a shorter one, since it leaves fewer messages and more
computing to hide the next one behind. A try that fails says the next value that a term can have, and one that succeeds the
value that it reached. The tries end where the two meet, so the result is exact.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Segment = tuple[int, int]
"""Layers [first, stop) that travel together."""
Bounds = tuple[int, ...]
"""A partition of L layers: 0, the ends of its segments in rising order, the last of which is L."""


@dataclass(frozen=True)
class Direction:
    """Transfers and computing of one direction. Both lists have L + 1 entries, by the layers before."""

    transfer_before: list[float]
    """Seconds that all layers before take on the link."""
    compute_before: list[float]
    message_seconds: float

    @classmethod
    def of(cls, transfers: Sequence[float], computing: Sequence[float], message_seconds: float) -> "Direction":
        """Build it from the seconds of each layer."""
        return cls(list(accumulate(transfers, initial=0.0)), list(accumulate(computing, initial=0.0)), message_seconds)

    def __len__(self) -> int:
        """Return L."""
        return len(self.transfer_before) - 1

    def exposed_seconds(self, bounds: Bounds) -> float:
        """Return the seconds that the direction takes beside its computing."""
        return max(
            count * self.message_seconds + self.transfer_before[stop] - self.compute_before[first]
            for count, (first, stop) in enumerate(pairwise(bounds), start=1)
        )

    def seconds(self, bounds: Bounds) -> float:
        """Return the seconds from the first transfer, or the first computing, until both are done."""
        return self.compute_before[-1] + self.exposed_seconds(bounds)


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
