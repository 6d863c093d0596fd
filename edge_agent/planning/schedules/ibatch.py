"""iBatch, a rival under a barrier: greedy segments (paper 002, Alg. 1 and 2; its source calls the backward part iPart).

Alg. 2 reads an undefined name in line 14, taken to be j. Where no choice is left, Alg. 1 takes all layers that remain and
Alg. 2 the next one, and without a first pair there is one segment. The paper leaves out the second algorithm of the forward
pass: here it is the first one in a film that runs backward, in which transfers and computing change places.
"""

from bisect import bisect_left

from edge_agent.planning.papers.dynacomm import Bounds, Direction


def ibatch_forward(direction: Direction) -> Bounds:
    """Return the better of the two greedy partitions of a forward pass."""
    return min(_first_to_last(direction), _last_to_first(direction), key=direction.exposed_seconds)


def ibatch_backward(direction: Direction) -> Bounds:
    """Return the best of the greedy partitions of a backward pass, one for each choice of the first segment."""
    layers = len(direction)
    candidates = [_backward_from(direction, stop) for stop in range(1, layers)]
    return min(candidates, key=direction.exposed_seconds, default=(0, layers))


def _first_to_last(direction: Direction) -> Bounds:
    """Alg. 1. The first two segments hide the most computing; each further one is the shortest that hides all it can."""
    before, compute, message = direction.transfer_before, direction.compute_before, direction.message_seconds
    layers = len(direction)
    pairs = [first for first in range(1, layers) if message + before[-1] - before[first] >= compute[first]]
    if not pairs:
        return (0, layers)
    bounds = [0, min(pairs, key=lambda first: (-compute[first], before[first]))]
    while bounds[-1] < layers:
        start, stop = bounds[-2:]
        wanted = compute[stop] - compute[start] - message + before[stop]
        bounds.append(min(bisect_left(before, wanted, lo=stop + 1), layers))
    return tuple(bounds)


def _last_to_first(direction: Direction) -> Bounds:
    """Mirror Alg. 1: the last two segments hide the most transfer; each one before is the shortest that hides all it can."""
    before, compute, message = direction.transfer_before, direction.compute_before, direction.message_seconds
    layers = len(direction)
    pairs = [last for last in range(1, layers) if compute[last] >= message + before[-1] - before[last]]
    if not pairs:
        return (0, layers)
    bounds = [layers, min(pairs, key=lambda last: (before[last], -compute[last]))]
    while bounds[-1] > 0:
        stop, start = bounds[-2:]
        wanted = message + before[stop] - before[start]
        bounds.append(next((at for at in range(start - 1, 0, -1) if compute[start] - compute[at] >= wanted), 0))
    return tuple(reversed(bounds))


def _backward_from(direction: Direction, stop: int) -> Bounds:
    """Alg. 2 with [stop, L) as the segment that is sent first: each next one is as much as is computed meanwhile."""
    before, compute, message = direction.transfer_before, direction.compute_before, direction.message_seconds
    bounds = [len(direction), stop]
    while bounds[-1] > 0:
        start = bounds[-1]
        sent = (len(bounds) - 1) * message + before[-1] - before[start]
        bounds.append(min(bisect_left(compute, compute[start] - sent, hi=start), start - 1))
    return tuple(reversed(bounds))
