"""Flow: an exchange without a barrier, whose messages are as large as the simulated period says is best.

No period of it, or of any other exchange, is shorter than its bound: what computing, one direction of a link and the ends take.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from edge_agent.planner_names import FLOW
from edge_agent.planning.schedules.layers import Layers
from edge_agent.planning.schedules.period import Period, play, run_slices, sliced
from edge_agent.planning.schedules.schedule import BACKWARD, FORWARD, PULL, PUSH, ExchangeSchedule, LayerEvent

LEAST_MESSAGE_BYTES = 64 * 1024
SLICES_PER_MESSAGE = 6
"""A message is filled with slices of this part of it: what is needed first seldom waits for a slice that is not."""
SLICE_UNIT_BYTES = 256
"""Slices begin at multiples of 64 numbers in float32."""
MOST_SLICES = 1024
"""More would take longer to play than they save."""
NEAR_ENOUGH = 1.002
"""No further size is tried once a period is this near to the bound."""


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
