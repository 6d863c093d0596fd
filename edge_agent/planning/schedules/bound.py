"""The least seconds of a period that any exchange could have: what computing, one direction of a link and the ends take."""

from itertools import accumulate

from edge_agent.planning.schedules.layers import Layers


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
