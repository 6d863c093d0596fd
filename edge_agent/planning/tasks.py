"""A step as tasks: the demands of a placement's programs on workers and links, for the cost model and the simulator.

A task is a segment of a program: a worker waits for messages, computes, and hands messages over. The rest of a program,
for example the rows of a tensor, does not matter here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared.placement import Crossing, urgency

Direction = tuple[str, str]
"""Sender and receiver."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a task hands over, and the place where it is awaited."""

    direction: Direction
    crossing: Crossing | None
    """Load that the message is, which says how urgent it is; None for a report, which takes no time."""
    task: int
    """Index of the receiver's task."""
    place: int
    """Place among the messages that the task awaits."""
    after_seconds: float
    """Seconds from the beginning of the sender's task until it hands the message over."""
    bits: float
    """Bits on the link."""
    carry_seconds: float
    """Seconds that it keeps its direction of the link busy. A message that takes no time overtakes others."""
    travel_seconds: float
    """Seconds that each bit is on the way besides."""

    def urgency(self, step: int) -> tuple[int, int, int]:
        """Return the urgency of the message of a step; see `shared.placement.urgency`."""
        return (0, 0, 0) if self.crossing is None else urgency(self.crossing, step)


@dataclass(frozen=True, slots=True)
class Task:
    """The uninterrupted work of a worker."""

    awaited: int
    """Number of messages that it waits for before it begins."""
    seconds: float
    tail_seconds: float
    """Seconds that it keeps the worker busy afterwards, while the step continues."""
    deliveries: tuple[Delivery, ...]
    after: tuple[int, ...] = ()
    """This worker's tasks that are done before of the same step."""
    behind: tuple[int, ...] = ()
    """This worker's tasks that are done before of step t - `ahead` - 1 - `early`, and with them all of the step before that."""
    early: int = 0
    """Steps by which samples and labels leave before their step may begin."""
    urgency: int = 0
    """See `urgency_of_segment`."""
    begins: bool = False
    """True if a step begins with it, or its samples leave ahead of one: that waits until the worker does nothing else, even
    where it takes no time."""

    @property
    def takes_time(self) -> bool:
        """Tell whether it keeps the worker busy. A task that only notes the arrival of messages does not."""
        return self.seconds + self.tail_seconds > 0.0


class Round(NamedTuple):
    """A way from one task of a worker to another that has to be done of an earlier step before."""

    worker: str
    first: int
    last: int
    share: float
    """Part of the way that `ahead` + 1 steps take at least: 1, or less where the first task is so much earlier."""


class SharedSegment(NamedTuple):
    """One way through a segment of a network on which several links lie."""

    rates: Mapping[Direction, float]
    """Bits per second of each direction there that carries something alone."""
    bits_per_second: float
    """Rate of all together. No direction alone has shown more."""


@dataclass(frozen=True)
class StepTasks:
    """One step of all workers."""

    workers: Mapping[str, tuple[Task, ...]]
    """Tasks of each worker that has a part in the step, in this order."""
    sources: frozenset[str]
    """Workers that have the samples. A step begins with their first tasks and is settled with their last."""
    ahead: int
    """Steps that a worker may be ahead of those that it has done: K, or more if nothing can be stale (`StepPlan.ahead`).
    Where samples enter, this bounds the steps in flight, and where blocks are run, the age of their weights."""
    shared: tuple[SharedSegment, ...] = ()

    @property
    def early(self) -> int:
        """Return the steps by which samples and labels leave before their step may begin; 0 where none do."""
        return max(task.early for tasks in self.workers.values() for task in tasks)

    def rounds(self) -> Iterator[Round]:
        """Yield the ways by which a worker waits for itself."""
        window = self.ahead + 1
        for worker, tasks in self.workers.items():
            known = set[tuple[int, int]]()
            for index, task in enumerate(tasks):
                for last in task.behind:
                    if (task.early, last) not in known:
                        known.add((task.early, last))
                        yield Round(worker, index, last, window / (window + task.early))
