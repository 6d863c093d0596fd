"""A schedule of one step of a member, and the events in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from edge_agent.planning.papers.dynacomm import Segment

FORWARD, BACKWARD, PUSH, PULL = "forward", "backward", "push", "pull"
"""Kinds of events."""


class LayerEvent(NamedTuple):
    """Computing of a layer, or a part of it in a message. Parts of one message begin and end together."""

    kind: str
    layer: int
    bytes: tuple[int, int]
    """The part of the layer's parameters, [begin, stop)."""
    begin: float
    """Seconds since the period began."""
    end: float


@dataclass(frozen=True)
class ExchangeSchedule:
    """The exchange of parameters by one strategy, and how long a step takes."""

    strategy: str
    played: Callable[[], Sequence[LayerEvent]]
    """Plays one period; most callers never ask."""
    forward_seconds: float
    """Seconds until the last layer has run forward: from the first pull with a barrier, from the end of the last backward
    without."""
    backward_seconds: float
    """Seconds from there until the last push has come with a barrier, until the first layer has run backward without."""
    pull_segments: tuple[Segment, ...] | None = None
    """Layers that come together, in the order in which they come; None without a barrier."""
    push_segments: tuple[Segment, ...] | None = None
    """Layers whose gradients go together, in the order in which they go; None without a barrier."""
    message_bytes: int | None = None
    """Bytes at which a message is full, without a barrier."""
    slice_bytes: int | None = None
    """Bytes of a slice, the unit that is updated by itself, without a barrier."""

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step."""
        return self.forward_seconds + self.backward_seconds

    @cached_property
    def events(self) -> tuple[LayerEvent, ...]:
        """Return the computing and the messages of one period, in the order in which they begin."""
        return tuple(sorted(self.played(), key=lambda event: (event.begin, event.end)))
