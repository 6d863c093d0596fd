"""The network of a run in virtual time: which messages are carried, and how quickly each.

A direction of a link carries one message at a time, of those that wait the most urgent one, at a constant rate or that of a
trace. Each is a connection of its own that knows of no other: directions on one segment have equal parts of it, but none has
more than it can carry, and what it leaves is for the others.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edge_agent.planning.tasks import Delivery, Direction, StepTasks
from edge_agent.planning.traces import Trace

Waiting = tuple[tuple[int, int, int], int, Delivery]
"""A message that waits to be carried: how urgent it is, and a number of its order."""


@dataclass(slots=True)
class _Carried:
    """A message on its way."""

    delivery: Delivery
    since: float
    """Moment at which `left` was left."""
    left: float = 1.0
    """Part of it."""
    share: float = 0.0
    """Part of its direction's rate at which it is carried since then."""
    number: int = 0
    """Number of its end, by which one that does not come any more is known."""


class Network:
    """The messages that wait, and those that are carried."""

    def __init__(self, step: StepTasks, traces: Mapping[Direction, Trace]) -> None:
        """traces: of the directions whose rates change. Parts of a segment are by the rates that do not."""
        self._segments, self._traces = step.shared, traces
        self._on_segments = frozenset(direction for segment in step.shared for direction in segment.rates)
        self._waiting = defaultdict[Direction, list[Waiting]](list)
        """The messages that each direction has not begun to carry, the most urgent first."""
        self._carried: dict[Direction, _Carried] = {}
        self._ends = 0
        """Number of ends that were told."""
        self._known: dict[frozenset[Direction], dict[Direction, float]] = {}
        """Shares that were found before, by the directions that carry something."""

    def add(self, waiting: Waiting) -> None:
        """Let a message wait for its direction."""
        heapq.heappush(self._waiting[waiting[-1].direction], waiting)

    def carry_next(self, direction: Direction, now: float) -> Iterator[tuple[float, Direction, int]]:
        """Begin with the next message of a direction that carries none. Yield the ends that are new, of whichever messages:
        the moment, and what `end` takes."""
        if direction not in self._carried and self._waiting[direction]:
            self._carried[direction] = _Carried(heapq.heappop(self._waiting[direction])[-1], now)
        if direction in self._on_segments:
            shares = self._shares(frozenset(self._carried.keys() & self._on_segments))
        else:
            shares = {direction: 1.0} if direction in self._carried else {}
        for one, share in shares.items():
            carried = self._carried[one]
            if carried.share != share:
                carried.left -= self._part(carried, now)
                self._ends += 1
                carried.since, carried.share, carried.number = now, share, self._ends
                yield self._end_of(carried), one, self._ends

    def end(self, direction: Direction, number: int) -> Delivery | None:
        """Take the message off that a direction has carried; None where this end does not come any more."""
        carried = self._carried.get(direction)
        if carried is None or carried.number != number:
            return None
        del self._carried[direction]
        return carried.delivery

    def _part(self, carried: _Carried, now: float) -> float:
        """Return the part of a message that was carried since its share was last another."""
        delivery, trace = carried.delivery, self._traces.get(carried.delivery.direction)
        if trace is None:
            return carried.share * (now - carried.since) / delivery.carry_seconds
        return carried.share * (trace.bits_until(now) - trace.bits_until(carried.since)) / delivery.bits

    def _end_of(self, carried: _Carried) -> float:
        delivery, trace = carried.delivery, self._traces.get(carried.delivery.direction)
        left = max(0.0, carried.left)
        if trace is None:
            return carried.since + delivery.carry_seconds * left / carried.share
        return trace.finish(carried.since, delivery.bits * left / carried.share)

    def _shares(self, carrying: frozenset[Direction]) -> dict[Direction, float]:
        """Return the part of its rate that each direction has."""
        if carrying not in self._known:
            self._known[carrying] = self._found_shares(carrying)
        return self._known[carrying]

    def _found_shares(self, carrying: frozenset[Direction]) -> dict[Direction, float]:
        shares: dict[Direction, float] = {}
        rates = {direction: rate for segment in self._segments for direction, rate in segment.rates.items()}
        free = [segment.bits_per_second for segment in self._segments]
        while left := sorted(carrying - shares.keys()):
            # All have more and more, until the first has all that it can carry, or its part of a segment that is full.
            parts = {direction: rates[direction] for direction in left}
            for segment, bits_per_second in zip(self._segments, free, strict=True):
                on_it = [direction for direction in left if direction in segment.rates]
                for direction in on_it:
                    parts[direction] = min(parts[direction], bits_per_second / len(on_it))
            level = min(parts.values())
            for direction in (direction for direction, part in parts.items() if part <= level):
                shares[direction] = level / rates[direction]
                for place, segment in enumerate(self._segments):
                    if direction in segment.rates:
                        free[place] -= level
        return shares
