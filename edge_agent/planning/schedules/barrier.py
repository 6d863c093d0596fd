"""Strategies with a barrier: a step begins when the updates of the step before it are complete (paper 002, III)."""

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
