"""A run of any placement in virtual time: every worker does its tasks of each step, as the runtime does.

A worker does one task at a time and does not interrupt it. A direction of a link carries one message at a time, of those that
wait the most urgent one, at a constant rate or that of a trace. On every worker each task does its steps in their order.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from shared.errors import PlanError
from shared.planning.tasks import Delivery, Direction, StepTasks, Task
from shared.planning.traces import Trace


@dataclass(frozen=True)
class PlacementRun:
    """The end of each step in a run: seconds, by step."""

    settled: tuple[float, ...]
    """Seconds at which the last source has settled it."""
    done: tuple[float, ...]
    """Seconds at which the last worker has done it."""
    ahead: int
    """Steps that may be under way beyond the oldest: K, or more if nothing can be stale."""

    def seconds_per_step(self) -> float:
        """Return the seconds of a step with a full pipeline: without the first half of the run, and its last steps,
        which drain it.

        PlanError for a run of less than 3 (K + 1) steps, or three times as many as may be under way.
        """
        window = self.ahead + 1
        last = len(self.done) - window - 1
        counted = (last + 1) // 2 // window * window
        if not counted:
            raise PlanError(f"a run of {len(self.done)} steps never fills the pipeline; it needs {3 * window} at least")
        return (self.done[last] - self.done[last - counted]) / counted


def simulate_placement(
    step: StepTasks,
    steps: float = math.inf,
    *,
    traces: Mapping[Direction, Trace] | None = None,
    begin: float = 0.0,
    until: float = math.inf,
) -> PlacementRun:
    """Do `steps` steps, one or more, from an empty pipeline until it is empty again.

    traces: of the directions whose rates change. The times of a run are those of the traces. begin: the start of the
    run. until: the time from which sources begin no more steps. They begin one at least.
    A worker first does a task that does not hold up others, such as an update; then another task than the last; and of
    several steps the newest, as `StepScheduler.next_work` says. A worker that has samples or runs blocks begins step t
    when it has done step t - K - 1, but for weights of blocks that it needs later.
    """
    ended = _Run(step, steps, traces or {}, begin, until).run()
    return PlacementRun(
        tuple(map(max, zip(*(ended[source] for source in step.sources), strict=True))),
        tuple(map(max, zip(*ended.values(), strict=True))),
        step.ahead,
    )


class _Worker:
    """The progress of one worker, and its next task."""

    def __init__(self, tasks: tuple[Task, ...], steps: float, until: float, window: int) -> None:
        """until: the time from which it begins no more steps. window: K + 1, as `Task.behind` counts it."""
        self.tasks = tasks
        self.done = [0] * len(tasks)
        """Number of steps in which each task is done. The step of that number is its next."""
        self._left: dict[int, int] = defaultdict(lambda: len(tasks))
        """Number of tasks that are not done, by step under way."""
        self.arrived = [[0] * task.awaited for task in tasks]
        """Number of steps in which each message has arrived, by task and place."""
        self.ended: list[float] = []
        """Times at which all tasks of each step were done."""
        self.busy = False
        self.last_task: int | None = None
        """Last task that took time."""
        self._steps, self._until = steps, until
        self._window = window

    def next_task(self, now: float) -> int | None:
        """Return the task to begin now. One that takes no time, because it only notes a message, does not wait for the
        worker."""
        ready = [index for index in range(len(self.tasks)) if self._is_ready(index, now)]
        for index in ready:
            if not self.tasks[index].takes_time:
                return index
        if self.busy or not ready:
            return None
        return max(ready, key=self._rank)

    def _rank(self, index: int) -> tuple[int, bool, bool, int]:
        task = self.tasks[index]
        return task.urgency, not task.awaited, index != self.last_task, self.done[index]

    def end(self, index: int, now: float) -> None:
        """Count a task as done of its next step."""
        step = self.done[index]
        self.done[index] += 1
        self._left[step] -= 1
        if not self._left[step]:
            del self._left[step]
            self.ended.append(now)

    def _is_ready(self, index: int, now: float) -> bool:
        step, task = self.done[index], self.tasks[index]
        if index == 0 and not (step < self._steps and (now < self._until or not step)):
            return False
        return (
            all(self.done[before] > step for before in task.after)
            and self._is_new_enough(step, task.behind)
            and all(come > step for come in self.arrived[index])
        )

    def _is_new_enough(self, step: int, behind: tuple[int, ...]) -> bool:
        """Tell whether the tasks are done that one waits for of an earlier step, and all of the step before that."""
        before = step - self._window
        return not behind or (before <= len(self.ended) and all(self.done[task] > before for task in behind))


class _Run:
    """The clock, and its events."""

    def __init__(
        self, step: StepTasks, steps: float, traces: Mapping[Direction, Trace], begin: float, until: float
    ) -> None:
        window = step.ahead + 1
        self._workers = {
            name: _Worker(tasks, steps, until if name in step.sources else math.inf, window)
            for name, tasks in step.workers.items()
        }
        self._traces = traces
        self._waiting = defaultdict[Direction, list[tuple[tuple[int, int, int], int, Delivery]]](list)
        """The messages that each direction has not begun to carry, the most urgent first, with a number of their order."""
        self._carrying = set[Direction]()
        """The directions that carry a message."""
        self._now = begin
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        """Events in the order of their times; those of one time in the order of their creation."""
        self._made = 0

    def run(self) -> dict[str, list[float]]:
        """Run, and return the end of each step, by worker."""
        self._begin_all()
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[-1]()
            self._begin_all()
        return {name: worker.ended for name, worker in self._workers.items()}

    def _begin_all(self) -> None:
        for worker in self._workers.values():
            while (index := worker.next_task(self._now)) is not None:
                self._begin(worker, index)

    def _begin(self, worker: _Worker, index: int) -> None:
        task, step = worker.tasks[index], worker.done[index]
        for each in task.deliveries:
            self._at(self._now + each.after_seconds, partial(self._hand_over, each, step))
        if task.takes_time:
            worker.busy, worker.last_task = True, index
            self._at(self._now + task.seconds, partial(self._end, worker, index))
            self._at(self._now + task.seconds + task.tail_seconds, partial(self._free, worker))
        else:
            self._end(worker, index)

    def _hand_over(self, delivery: Delivery, step: int) -> None:
        if delivery.carry_seconds > 0.0:
            heapq.heappush(self._waiting[delivery.direction], (delivery.urgency(step), self._made, delivery))
            # Not at once: others that are handed over at the same time may be more urgent.
            self._at(self._now, partial(self._carry_next, delivery.direction))
        else:
            self._at(self._now + delivery.travel_seconds, partial(self._arrive, delivery))

    def _carry_next(self, direction: Direction) -> None:
        if direction in self._carrying or not self._waiting[direction]:
            return
        self._carrying.add(direction)
        _, _, delivery = heapq.heappop(self._waiting[direction])
        trace = self._traces.get(direction)
        end = self._now + delivery.carry_seconds if trace is None else trace.finish(self._now, delivery.bits)
        self._at(end, partial(self._carried, direction))
        self._at(end + delivery.travel_seconds, partial(self._arrive, delivery))

    def _carried(self, direction: Direction) -> None:
        self._carrying.discard(direction)
        self._carry_next(direction)

    def _arrive(self, delivery: Delivery) -> None:
        self._workers[delivery.direction[1]].arrived[delivery.task][delivery.place] += 1

    def _end(self, worker: _Worker, index: int) -> None:
        worker.end(index, self._now)

    def _free(self, worker: _Worker) -> None:
        worker.busy = False

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (moment, self._made, event))
