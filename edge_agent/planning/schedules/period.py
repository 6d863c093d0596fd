"""One period of an exchange without a barrier, simulated.

A slice of a layer's parameters is updated once all members have pushed it, and is pulled at once. On each link the slice that
is needed first goes first; a message takes slices until it is full. Members are alike and in step, so one of them is played.

When the last layer begins its forward pass, all weights have come: nothing travels. So every period is like the one before,
and one that begins there is all there is to play.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from edge_agent.planning.schedules.layers import Layers
from shared.slicing import slice_count


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
    link = _OneWay(slices, message_bytes, layers.message_seconds, is_run=is_run)
    pushes = link.carry(arrivals, slices.push_seconds, quiet_until=computed[0] if quiet else 0.0)
    pulls = link.carry([(push.end, push.slices) for push in pushes], slices.pull_seconds)
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


class _OneWay:
    """One direction of a link, which carries one message after the other."""

    def __init__(self, slices: LayerSlices, message_bytes: int, message_seconds: float, *, is_run: bool) -> None:
        self._sizes = [stop - begin for begin, stop in zip(slices.begins, slices.stops, strict=True)]
        self._message_bytes = message_bytes
        self._kept_seconds, self._late_seconds = (0.0, message_seconds) if is_run else (message_seconds, 0.0)

    def carry(
        self, arrivals: Sequence[tuple[float, list[int]]], seconds: list[float], quiet_until: float = 0.0
    ) -> list[SliceMessage]:
        """Carry slices that become ready in rising order of time. quiet_until: a message begins later, or is done by then."""
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
            room = quiet_until - now if now < quiet_until else float("inf")
            taken, size, took = [], 0, self._kept_seconds
            while waiting and size < self._message_bytes and took + seconds[waiting[0]] <= room:
                piece = heappop(waiting)
                taken.append(piece)
                size += self._sizes[piece]
                took += seconds[piece]
            if not taken:
                now = quiet_until
                continue
            messages.append(SliceMessage(now, now + took + self._late_seconds, taken))
            now += took
        return messages
