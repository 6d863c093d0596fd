"""Strategies with a barrier: a step begins when the updates of the step before it are complete (paper 002, III).

iBatch has greedy segments (Alg. 1 and 2; its source calls the backward part iPart). Alg. 2 reads an undefined name in line
14, taken to be j. Where no choice is left, Alg. 1 takes all layers that remain and Alg. 2 the next one, and without a first
pair there is one segment. The paper leaves out the second algorithm of the forward pass: here it is the first one in a film
that runs backward, in which transfers and computing change places.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from edge_agent.planning.papers.dynacomm import Bounds, Direction, Segment
from edge_agent.planning.schedules.layers import Layers
from edge_agent.planning.schedules.schedule import BACKWARD, FORWARD, PULL, PUSH, ExchangeSchedule, LayerEvent

Solver = Callable[[Direction], Bounds]


def sequential(direction: Direction) -> Bounds:
    """All layers in one message."""
    return (0, len(direction))


def layerwise(direction: Direction) -> Bounds:
    """A message for each layer, as in Poseidon."""
    return tuple(range(len(direction) + 1))


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


def with_barrier(strategy: str, layers: Layers, forward: Solver, backward: Solver) -> ExchangeSchedule:
    """Return the schedule of the partitions that two solvers choose."""
    pull = Direction.of(layers.pull_seconds, layers.forward_seconds, layers.message_seconds)
    push = Direction.of(layers.push_seconds, layers.backward_seconds, layers.message_seconds)
    pulls = tuple(pairwise(pulled := forward(pull)))
    pushes = tuple(reversed(tuple(pairwise(pushed := backward(push)))))
    return ExchangeSchedule(
        strategy,
        partial(_events, layers, pulls, pushes),
        forward_seconds=pull.seconds(pulled),
        backward_seconds=push.seconds(pushed),
        pull_segments=pulls,
        push_segments=pushes,
    )


def _events(layers: Layers, pulls: tuple[Segment, ...], pushes: tuple[Segment, ...]) -> list[LayerEvent]:
    """Play a step: pulls and the forward pass, then the backward pass and pushes."""
    events: list[LayerEvent] = []

    def whole(kind: str, layer: int, begin: float, end: float) -> None:
        events.append(LayerEvent(kind, layer, (0, layers.bytes[layer]), begin, end))

    arrived = done = 0.0
    for first, stop in pulls:
        begin, arrived = arrived, arrived + layers.message_seconds + sum(layers.pull_seconds[first:stop])
        done = max(done, arrived)
        for layer in range(first, stop):
            whole(PULL, layer, begin, arrived)
        for layer in range(first, stop):
            begin, done = done, done + layers.forward_seconds[layer]
            whole(FORWARD, layer, begin, done)
    sent = done
    for first, stop in pushes:
        for layer in reversed(range(first, stop)):
            begin, done = done, done + layers.backward_seconds[layer]
            whole(BACKWARD, layer, begin, done)
        begin = max(sent, done)
        sent = begin + layers.message_seconds + sum(layers.push_seconds[first:stop])
        for layer in reversed(range(first, stop)):
            whole(PUSH, layer, begin, sent)
    return events
