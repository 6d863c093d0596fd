"""Pace of a run, from the moments at which its steps were done. Calculations only."""

from collections.abc import Sequence
from itertools import pairwise

from benchmarks.support.live import Layout, Moment


def steps_per_second(moments: Sequence[Moment], begin: float, end: float) -> float:
    """Return the rate of the steps that were done after `begin` and until `end`, seconds of the moments' clock."""
    return sum(begin < moment.seconds <= end for moment in moments) / (end - begin)


def seconds_per_step(moments: Sequence[Moment], segment: int) -> list[float]:
    """Return the pace of each stretch of `segment` steps, the first step being the beginning of the first stretch."""
    ends = [moment.seconds for moment in moments]
    return [(ends[last] - ends[last - segment]) / segment for last in range(segment, len(ends), segment)]


def seconds_to_reach(moments: Sequence[Moment], since: float, goal: float, window_seconds: float) -> float | None:
    """From `since` to the end of the first window after it in which the run did `goal` steps a second or more; None for never.

    A window ends with a step.
    """
    ends = [moment.seconds for moment in moments if moment.seconds >= since + window_seconds]
    reached = (end for end in ends if steps_per_second(moments, end - window_seconds, end) >= goal)
    first = next(reached, None)
    return None if first is None else first - since


def layouts(moments: Sequence[Moment]) -> list[tuple[float, Layout]]:
    """From when on each layout was seen that differs from the one before it; that of the first moment is first."""
    found = [(moment.seconds, moment.layout) for moment in moments[:1]]
    found += [(later.seconds, later.layout) for earlier, later in pairwise(moments) if later.layout != earlier.layout]
    return found
