"""One direction of a step under a barrier: its transfers in segments of whole layers, and the computing beside them.

The cost is that of paper 002 (III, A): messages go one after the other, each takes the seconds of its layers and a constant,
and a layer is computed once its segment has come. Eq. 13 comes to

    compute + min over partitions of max over segments j of (j * message + transfer before its end - compute before its begin)

Pushes are pulls in a film that runs backward, so Eq. 14 is the same with the seconds of pushes and of the backward pass, and
the segments are still counted from the first layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Segment = tuple[int, int]
"""Layers [first, stop) that travel together."""
Bounds = tuple[int, ...]
"""A partition of L layers: 0, the ends of its segments in rising order, the last of which is L."""


@dataclass(frozen=True)
class Direction:
    """Transfers and computing of one direction. Both lists have L + 1 entries, by the layers before."""

    transfer_before: list[float]
    """Seconds that all layers before take on the link."""
    compute_before: list[float]
    message_seconds: float

    @classmethod
    def of(cls, transfers: Sequence[float], computing: Sequence[float], message_seconds: float) -> "Direction":
        """Build it from the seconds of each layer."""
        return cls(list(accumulate(transfers, initial=0.0)), list(accumulate(computing, initial=0.0)), message_seconds)

    def __len__(self) -> int:
        """Return L."""
        return len(self.transfer_before) - 1

    def exposed_seconds(self, bounds: Bounds) -> float:
        """Return the seconds that the direction takes beside its computing."""
        return max(
            count * self.message_seconds + self.transfer_before[stop] - self.compute_before[first]
            for count, (first, stop) in enumerate(pairwise(bounds), start=1)
        )

    def seconds(self, bounds: Bounds) -> float:
        """Return the seconds from the first transfer, or the first computing, until both are done."""
        return self.compute_before[-1] + self.exposed_seconds(bounds)
