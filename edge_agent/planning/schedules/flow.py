"""Flow: an exchange without a barrier, whose messages are as large as the simulated period says is best.

A slice of a layer's parameters is updated once all members have pushed it, and is pulled at once. On each link the slice that
is needed first goes first; a message takes slices until it is full. Members are alike and in step, so one of them is played.
When the last layer begins its forward pass, all weights have come: nothing travels. So every period is like the one before,
and one that begins there is all there is to play. No period of it, or of any other exchange, is shorter than its bound: what
computing, one direction of a link and the ends take.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from edge_agent.planner_names import FLOW
from edge_agent.planning.schedules.layers import Layers
from edge_agent.planning.schedules.schedule import BACKWARD, FORWARD, PULL, PUSH, ExchangeSchedule, LayerEvent
from shared.slicing import slice_count

LEAST_MESSAGE_BYTES = 64 * 1024
SLICES_PER_MESSAGE = 6
"""A message is filled with slices of this part of it: what is needed first seldom waits for a slice that is not."""
SLICE_UNIT_BYTES = 256
"""Slices begin at multiples of 64 numbers in float32."""
MOST_SLICES = 1024
"""More would take longer to play than they save."""
NEAR_ENOUGH = 1.002
"""No further size is tried once a period is this near to the bound."""


class LayerSlices(NamedTuple):
    """The slices of all layers, those that are needed first in front."""

    layers: list[int]
    begins: list[int]
    stops: list[int]
    push_seconds: list[float]
    pull_seconds: list[float]


class SliceMessage(NamedTuple):
    """Slices that travel together."""

    begin: float
    end: float
    slices: list[int]


@dataclass(frozen=True)
class Period:
    """One period. Times are in seconds from the begin of the last layer's forward pass."""

    seconds: float
    slices: LayerSlices
    computed: list[float]
    """The times at which the backward pass of each layer is done."""
    begun: list[float]
    """The times at which the next forward pass of each layer begins, but for the last layer."""
    pushes: list[SliceMessage]
    pulls: list[SliceMessage]


def flow(layers: Layers) -> ExchangeSchedule:
    """Return the schedule of the best period among those tried."""
    message_bytes, period = _best(layers)
    backward_seconds = sum(layers.backward_seconds)
    return ExchangeSchedule(
        FLOW,
        partial(_events, layers, period),
        forward_seconds=period.seconds - backward_seconds,
        backward_seconds=backward_seconds,
        message_bytes=message_bytes,
        slice_bytes=_slice_bytes(message_bytes),
    )


def run_seconds(layers: Layers, all_bytes: int | None = None, *, whole_blocks: bool = False) -> float:
    """Return the seconds of a step of a run, whose slices each travel in a message of its own, what is needed first before.

    A message follows the one before at once, however long either is on its way.
    all_bytes: of all layers of the model, where it has more than these. whole_blocks: True where every block is one slice,
    because its update needs all of its gradient.
    """
    all_bytes = sum(layers.bytes) if all_bytes is None else all_bytes
    slices = sliced(layers, max(1, *layers.bytes)) if whole_blocks else run_slices(layers, all_bytes)
    return play(layers, slices, 1, is_run=True).seconds


def bound_seconds(layers: Layers) -> float:
    """Return a time that no order, no slices and no barrier can beat.

    Say for each layer: when its backward pass is done, it and all layers before it are still to be pushed and pulled, by one
    message each way at least, before the forward pass can go on behind it. The layers behind it are computed at other times.
    For the first layer that is all computing and the exchange of the first layer; for the last one all bytes and the computing
    of the last layer.
    """
    behind = accumulate(map(sum, zip(reversed(layers.forward_seconds), reversed(layers.backward_seconds), strict=True)))
    pushes, pulls = accumulate(layers.push_seconds), accumulate(layers.pull_seconds)
    exchanged = (
        max(push, pull) + 2 * layers.message_seconds if size else 0.0
        for push, pull, size in zip(pushes, pulls, accumulate(layers.bytes), strict=True)
    )
    return max(map(sum, zip(reversed(list(behind)), exchanged, strict=True)))


def _best(layers: Layers) -> tuple[int, Period]:
    """Play periods from large messages to small ones, as long as the messages alone take less than the best period."""
    total, least_seconds = sum(layers.bytes), bound_seconds(layers)
    carried_seconds = max(sum(layers.push_seconds), sum(layers.pull_seconds))
    found: tuple[int, Period] | None = None
    for message_bytes in _sizes(total):
        messages = total / (message_bytes + _slice_bytes(message_bytes))
        if found and carried_seconds + messages * layers.message_seconds > found[1].seconds:
            break
        slices = sliced(layers, _slice_bytes(message_bytes))
        for quiet in (False, True):
            period = play(layers, slices, message_bytes, quiet=quiet)
            if found is None or period.seconds < found[1].seconds:
                found = message_bytes, period
        if found and found[1].seconds <= NEAR_ENOUGH * least_seconds:
            break
    assert found is not None, "there is a size"
    return found


def _sizes(total: int) -> Iterator[int]:
    """Yield the sizes of messages to try, the largest first, each about 0.7 of the one before."""
    smallest = max(LEAST_MESSAGE_BYTES, SLICES_PER_MESSAGE * total / MOST_SLICES)
    steps = max(0, math.ceil(2 * math.log2(max(total, 1) / smallest)))
    unit = SLICES_PER_MESSAGE * SLICE_UNIT_BYTES
    for step in range(steps, -1, -1):
        yield math.ceil(smallest * 2 ** (step / 2) / unit) * unit


def _slice_bytes(message_bytes: int) -> int:
    return message_bytes // SLICES_PER_MESSAGE


def _events(layers: Layers, period: Period) -> list[LayerEvent]:
    events = [LayerEvent(FORWARD, len(layers) - 1, (0, layers.bytes[-1]), 0.0, layers.forward_seconds[-1])]
    begin = layers.forward_seconds[-1]
    for layer in reversed(range(len(layers))):
        events.append(LayerEvent(BACKWARD, layer, (0, layers.bytes[layer]), begin, period.computed[layer]))
        begin = period.computed[layer]
    for layer, begin in enumerate(period.begun):
        events.append(
            LayerEvent(FORWARD, layer, (0, layers.bytes[layer]), begin, begin + layers.forward_seconds[layer])
        )
    slices = period.slices
    for kind, messages in ((PUSH, period.pushes), (PULL, period.pulls)):
        for message in messages:
            parts: list[list[int]] = []
            for piece in message.slices:
                layer, begin, stop = slices.layers[piece], slices.begins[piece], slices.stops[piece]
                if parts and parts[-1][0] == layer and parts[-1][2] == begin:
                    parts[-1][2] = stop
                else:
                    parts.append([layer, begin, stop])
            events += [
                LayerEvent(kind, layer, (begin, stop), message.begin, message.end) for layer, begin, stop in parts
            ]
    return events


def sliced(layers: Layers, slice_bytes: int) -> LayerSlices:
    """Cut the layers into slices of so many bytes; the last slice of a layer has what is left."""
    return _cut(layers, [slice_bytes] * len(layers))


def run_slices(layers: Layers, all_bytes: int) -> LayerSlices:
    """Cut the layers as a group does. all_bytes: of all layers of the model, which may have more than these."""
    return _cut(layers, [max(1, math.ceil(size / slice_count(size, all_bytes))) for size in layers.bytes])


def _cut(layers: Layers, most_bytes: Sequence[int]) -> LayerSlices:
    slices = LayerSlices([], [], [], [], [])
    for layer, size in enumerate(layers.bytes):
        slice_bytes = most_bytes[layer]
        for begin in range(0, size, slice_bytes):
            stop = min(begin + slice_bytes, size)
            part = (stop - begin) / size
            slices.layers.append(layer)
            slices.begins.append(begin)
            slices.stops.append(stop)
            slices.push_seconds.append(part * layers.push_seconds[layer])
            slices.pull_seconds.append(part * layers.pull_seconds[layer])
    return slices


def play(
    layers: Layers, slices: LayerSlices, message_bytes: int, *, quiet: bool = False, is_run: bool = False
) -> Period:
    """Play a period.

    message_bytes: a message takes slices until it has so many.
    quiet: no push begins that would still travel when the backward pass ends, because the first layers, for which the next step
    waits, are ready only then.
    is_run: the seconds of a message pass until it is there, and the next one follows at once; in paper 002 they keep the link.
    """
    computed = _computed(layers)
    ready: dict[int, list[int]] = {}
    for piece, layer in enumerate(slices.layers):
        ready.setdefault(layer, []).append(piece)
    arrivals = [(computed[layer], pieces) for layer, pieces in sorted(ready.items(), reverse=True)]
    carry = partial(_carried, slices, message_bytes, layers.message_seconds, is_run=is_run)
    pushes = carry(arrivals, slices.push_seconds, quiet_until=computed[0] if quiet else 0.0)
    pulls = carry([(push.end, push.slices) for push in pushes], slices.pull_seconds)
    arrived = [computed[0]] * len(layers)
    for message in pulls:
        for piece in message.slices:
            arrived[slices.layers[piece]] = message.end
    now, begun = computed[0], []
    for layer in range(len(layers) - 1):
        now = max(now, arrived[layer])
        begun.append(now)
        now += layers.forward_seconds[layer]
    return Period(max(now, arrived[-1]), slices, computed, begun, pushes, pulls)


def _computed(layers: Layers) -> list[float]:
    backward = accumulate(reversed(layers.backward_seconds), initial=layers.forward_seconds[-1])
    return list(backward)[:0:-1]


def _carried(
    slices: LayerSlices,
    message_bytes: int,
    message_seconds: float,
    arrivals: Sequence[tuple[float, list[int]]],
    seconds: list[float],
    *,
    is_run: bool,
    quiet_until: float = 0.0,
) -> list[SliceMessage]:
    """Carry slices that become ready in rising order of time, in one direction of a link, one message after the other.

    quiet_until: a message begins later, or is done by then.
    """
    kept_seconds, late_seconds = (0.0, message_seconds) if is_run else (message_seconds, 0.0)
    waiting: list[int] = []
    messages: list[SliceMessage] = []
    now, upcoming = 0.0, 0
    while upcoming < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[upcoming][0])
        while upcoming < len(arrivals) and arrivals[upcoming][0] <= now:
            for piece in arrivals[upcoming][1]:
                heappush(waiting, piece)
            upcoming += 1
        room = quiet_until - now if now < quiet_until else math.inf
        taken, size, took = [], 0, kept_seconds
        while waiting and size < message_bytes and took + seconds[waiting[0]] <= room:
            piece = heappop(waiting)
            taken.append(piece)
            size += slices.stops[piece] - slices.begins[piece]
            took += seconds[piece]
        if not taken:
            now = quiet_until
            continue
        messages.append(SliceMessage(now, now + took + late_seconds, taken))
        now += took
    return messages
