"""The order in which a worker computes, as its reports tell it: with it alone a run can be repeated to the same bits.

Each segment of a program does its steps one after the other, so the segments in their order say all of it.
"""

from collections.abc import Iterable, Iterator, Sequence

MOST_NUMBERS = 1024
"""The most that a report says; an order with more, of a worker that is hundreds of steps ahead of others, is not told."""


class ComputedOrder:
    """The segments that a worker has computed since the last step that it did, as runs of one segment."""

    def __init__(self, segments: int) -> None:
        """segments: how many a step has here."""
        self._usual = [number for segment in range(segments) for number in (segment, 1)]
        self._runs: list[int] = []

    def note(self, segment: int) -> None:
        """A segment was computed."""
        if self._runs and self._runs[-2] == segment:
            self._runs[-1] += 1
        else:
            self._runs += (segment, 1)

    def take(self) -> Sequence[int]:
        """A step is done: pairs of a segment and how often in a row it was computed; nothing where each was, once, in turn."""
        runs, self._runs = self._runs, []
        return () if runs == self._usual or len(runs) > MOST_NUMBERS else runs


def segments_of(runs: Sequence[int], segments: int) -> Iterable[int]:
    """The segments that such pairs say, in their order."""
    return _expanded(runs) if runs else range(segments)


def _expanded(runs: Sequence[int]) -> Iterator[int]:
    for segment, count in zip(runs[::2], runs[1::2], strict=True):
        for _ in range(count):
            yield segment
