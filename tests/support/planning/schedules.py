"""Layers for the tests of schedules: drawn at random with ties and zeros, and small ones whose numbers are easy to follow."""

import random
from collections.abc import Callable

from edge_agent.planning.schedules import Layers

MIB = 2**20


def layers(
    pulls, forwards, backwards, pushes, *, message_seconds: float = 0.0, sizes: tuple[int, ...] | None = None
) -> Layers:
    """Layers of these seconds; a megabyte each where no sizes are given."""
    count = len(pulls)
    return Layers(
        model="small",
        message_seconds=message_seconds,
        names=tuple(f"layer{place}" for place in range(count)),
        bytes=sizes or (MIB,) * count,
        pull_seconds=tuple(pulls),
        forward_seconds=tuple(forwards),
        backward_seconds=tuple(backwards),
        push_seconds=tuple(pushes),
    )


NUMBERS: tuple[Callable[[random.Random], float], ...] = (
    lambda draw: draw.randint(0, 4),
    lambda draw: draw.choice((0.0, 0.5, 0.5, 8.0)),
    lambda draw: draw.random(),
    lambda draw: draw.random() ** 6,
)
"""Seconds with ties and zeros, with steps, spread evenly, and mostly small."""


def drawn_seconds(draw: random.Random, count: int) -> tuple[list[float], list[float], float]:
    """Draw the transfers and the computing of so many layers, and the cost of a message, which is often nothing."""
    number = draw.choice(NUMBERS)
    message = draw.choice((0.0, draw.choice(NUMBERS)(draw)))
    return [number(draw) for _ in range(count)], [number(draw) for _ in range(count)], message
