"""A schedule that is made again while its layers change: at the start of each epoch, and where anything has moved by a tenth.

Pure: its caller measures, says when, and puts into force what it is given.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from edge_agent.planning.papers.dynacomm import Bounds, Direction, Segment
from edge_agent.planning.schedules.barrier import with_barrier
from edge_agent.planning.schedules.layers import Layers
from edge_agent.planning.schedules.schedule import ExchangeSchedule

MOVED = 0.1
"""Part by which rates or times have to move between two epochs for another schedule (paper 002 makes one an epoch)."""
LEAST_SAVED = 0.05
"""Part of a step that another schedule has to save, or it would follow noise: each change has the whole group wait a moment."""


class ScheduleAgain:
    """The schedule of one member by one strategy."""

    def __init__(self, strategy: Callable[[Layers], ExchangeSchedule], steps_per_epoch: int) -> None:
        """strategy: one with a barrier."""
        self._strategy = strategy
        self._steps_per_epoch = steps_per_epoch
        self._made_for: Layers | None = None
        self._epoch = -1

    def is_due(self, layers: Layers, step: int) -> bool:
        """Tell whether a schedule is to be made for these layers before a step."""
        before = self._made_for
        return before is None or step // self._steps_per_epoch != self._epoch or has_moved(before, layers)

    def made(self, layers: Layers, step: int, in_force: tuple[Bounds, Bounds]) -> ExchangeSchedule | None:
        """Make a schedule for these layers. Returns None where the partitions in force, to pull and to push, are as good."""
        self._made_for, self._epoch = layers, step // self._steps_per_epoch
        schedule, today = self._strategy(layers), kept(layers, *in_force)
        return schedule if schedule.step_seconds <= (1.0 - LEAST_SAVED) * today.step_seconds else None


def kept(layers: Layers, pull: Bounds, push: Bounds) -> ExchangeSchedule:
    """Return the schedule of partitions that are given."""

    def given(bounds: Bounds) -> Callable[[Direction], Bounds]:
        return lambda _direction: bounds

    return with_barrier("kept", layers, forward=given(pull), backward=given(push))


def bounds_of(segments: Sequence[Segment]) -> Bounds:
    """Return the partition that segments are, in whatever order they travel."""
    return tuple(sorted(set(chain.from_iterable(segments))))


def has_moved(before: Layers, now: Layers) -> bool:
    """Tell whether transfers, computing or messages take other seconds, in all layers together by more than a tenth."""
    rows: list[tuple[Sequence[float], Sequence[float]]] = [
        ((before.message_seconds,), (now.message_seconds,)),
        (before.pull_seconds, now.pull_seconds),
        (before.push_seconds, now.push_seconds),
        (before.forward_seconds, now.forward_seconds),
        (before.backward_seconds, now.backward_seconds),
    ]
    return any(sum(abs(new - old) for old, new in zip(*row, strict=True)) > MOVED * sum(row[0]) for row in rows)
