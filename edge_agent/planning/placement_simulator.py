"""A run of any placement in virtual time: every worker does its tasks of each step, as the runtime does.

What a worker does next is in `simulated_worker`, what links carry meanwhile in `network`.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.planning.network import Network
from edge_agent.planning.simulated_worker import MOST_PERIODS, SimulatedWorker
from edge_agent.planning.tasks import Delivery, Direction, StepTasks
from edge_agent.planning.traces import Trace
from shared.errors import PlanError


@dataclass(frozen=True)
class PlacementRun:
    """The end of each step in a run: seconds, by step."""

    settled: tuple[float, ...]
    """Seconds at which the last source has settled it."""
    done: tuple[float, ...]
    """Seconds at which the last worker has done it."""
    ahead: int
    """Steps that may be under way beyond the oldest: K, or more if nothing can be stale."""
    early: int = 0
    """Steps by which samples leave before their own. The last so many steps have none beside them."""

    def seconds_per_step(self) -> float:
        """Return the seconds of a step with a full pipeline: without the first half of the run, and its last steps,
        which drain it.

        PlanError for a run of less than 3 (K + 1) steps, or three times as many as may be under way; where samples leave
        ahead, for one of less than some more.
        """
        window, alike = self.ahead + 1, _alike_after(self.ahead, self.early)
        last = len(self.done) - window - self.early - 1
        counted = (last + 1) // 2 // alike * alike
        if not counted:
            needed = 2 * alike + window + self.early
            raise PlanError(f"a run of {len(self.done)} steps never fills the pipeline; it needs {needed} at least")
        return (self.done[last] - self.done[last - counted]) / counted


def _alike_after(ahead: int, early: int) -> int:
    """Return a number of steps after which a run repeats, whether K bounds it or the samples that leave ahead."""
    return math.lcm(ahead + 1, ahead + 1 + early)


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
    when it has done step t - K - 1, but for weights of blocks that it needs later. Samples and labels that leave ahead leave
    some steps before that.
    """
    run = _Run(step, steps, traces or {}, begin, until)
    for _ in run.steps():
        pass
    return run.ended()


MOST_WINDOWS = 24
"""Times K + 1 steps after which a run is long enough, if it does not repeat."""
ROUNDING = 1e-9
"""Part of a step by which the times of two steps that are alike may differ."""


def steady_step_seconds(step: StepTasks) -> float:
    """Return the seconds of a step with a full pipeline.

    The run ends as soon as each worker begins all its tasks of some steps, as many as may be under way or a few times that, as
    late after those of as many steps before: from then on everything repeats. Where that does not come, the mean counts, or
    what the busiest part takes.
    """
    window, fed = step.ahead + 1, step.ahead + 1 + step.early
    run = _Run(step, max(MOST_WINDOWS * window, 2 * _alike_after(step.ahead, step.early) + fed), {}, 0.0, math.inf)
    lengths = {each * times for each in (window, fed) for times in range(1, MOST_PERIODS + 1)}
    periods = [_Period(length, step.early) for length in sorted(lengths)]
    for number in run.steps():
        for period in periods:
            if number >= period.steps and period.repeats(run.begun(number - period.steps), run.begun(number)):
                return period.seconds / period.steps
    return max(run.ended().seconds_per_step(), _busiest_seconds(step))


class _Period:
    """A number of steps after which a run may repeat."""

    def __init__(self, steps: int, early: int) -> None:
        """early: steps that have begun in part beyond those that are compared."""
        self.steps = steps
        self._enough = steps + early
        self.seconds = 0.0
        """Seconds that each task of a step began after the same of so many steps before."""
        self._alike = 0
        """Number of steps, one after the other, for which these seconds are the same."""

    def repeats(self, before: list[float], after: list[float]) -> bool:
        """Tell whether the run repeats, after another step. The times are those of its tasks, and of those so long before."""
        most = after[0] - before[0]
        within = ROUNDING * most
        if any(abs(late - early - most) > within for early, late in zip(before, after, strict=True)):
            self._alike = 0
            return False
        self._alike = self._alike + 1 if self._alike and abs(most - self.seconds) <= within else 1
        self.seconds = most
        return self._alike == self._enough


def _busiest_seconds(step: StepTasks) -> float:
    """Return the seconds of the busiest worker or direction."""
    busy = [sum(task.seconds + task.tail_seconds for task in tasks) for tasks in step.workers.values()]
    carried = defaultdict[Direction, float](float)
    for each in (each for tasks in step.workers.values() for task in tasks for each in task.deliveries):
        carried[each.direction] += each.carry_seconds
    return max([*busy, *carried.values()])


class _Run:
    """The clock, and its events."""

    def __init__(
        self, step: StepTasks, steps: float, traces: Mapping[Direction, Trace], begin: float, until: float
    ) -> None:
        window = step.ahead + 1
        self._step = step
        self._workers = {
            name: SimulatedWorker(tasks, steps, until if name in step.sources else math.inf, window, step.early)
            for name, tasks in step.workers.items()
        }
        self._to_ask = dict.fromkeys(self._workers.values(), True)
        """True if anything has happened to a worker since it was asked for its next task."""
        self._network = Network(step, traces)
        self._now = begin
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        """Events in the order of their times; those of one time in the order of their creation."""
        self._made = 0

    def steps(self) -> Iterator[int]:
        """Run, and yield the number of each step that all workers have done."""
        workers, yielded = self._workers.values(), 0
        self._begin_all()
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                _, _, happen, arguments = heapq.heappop(self._events)
                happen(*arguments)
            self._begin_all()
            while all(len(worker.ended) > yielded for worker in workers):
                yield yielded
                yielded += 1

    def begun(self, step: int) -> list[float]:
        """Return the times at which each task of a step was begun."""
        return [moment for worker in self._workers.values() for moment in worker.begun[step]]

    def ended(self) -> PlacementRun:
        """Return the end of each step so far."""
        ended = {name: worker.ended for name, worker in self._workers.items()}
        return PlacementRun(
            tuple(map(max, zip(*(ended[source] for source in self._step.sources), strict=True))),
            tuple(map(max, zip(*ended.values(), strict=True))),
            self._step.ahead,
            self._step.early,
        )

    def _begin_all(self) -> None:
        for worker, asked in self._to_ask.items():
            if asked:
                while (index := worker.next_task(self._now)) is not None:
                    self._begin(worker, index)
                self._to_ask[worker] = False

    def _begin(self, worker: SimulatedWorker, index: int) -> None:
        task, step = worker.tasks[index], worker.done[index]
        worker.begun[step][index] = self._now
        for each in task.deliveries:
            self._at(self._now + each.after_seconds, self._hand_over, each, step)
        if task.takes_time:
            worker.busy, worker.last_task = True, index
            self._at(self._now + task.seconds, self._end, worker, index)
            self._at(self._now + task.seconds + task.tail_seconds, self._free, worker)
        else:
            self._end(worker, index)

    def _hand_over(self, delivery: Delivery, step: int) -> None:
        if delivery.carry_seconds > 0.0:
            self._network.add((delivery.urgency(step), self._made, delivery))
            # Not at once: others that are handed over at the same time may be more urgent.
            self._at(self._now, self._carry_next, delivery.direction)
        else:
            self._at(self._now + delivery.travel_seconds, self._arrive, delivery)

    def _carry_next(self, direction: Direction) -> None:
        for moment, one, number in self._network.carry_next(direction, self._now):
            self._at(moment, self._carried, one, number)

    def _carried(self, direction: Direction, number: int) -> None:
        delivery = self._network.end(direction, number)
        if delivery is not None:
            self._at(self._now + delivery.travel_seconds, self._arrive, delivery)
            self._carry_next(direction)

    def _arrive(self, delivery: Delivery) -> None:
        worker = self._workers[delivery.direction[1]]
        worker.arrived[delivery.task][delivery.place] += 1
        worker.look_at(delivery.task)
        self._to_ask[worker] = True

    def _end(self, worker: SimulatedWorker, index: int) -> None:
        worker.end(index, self._now)
        self._to_ask[worker] = True

    def _free(self, worker: SimulatedWorker) -> None:
        worker.busy = False
        self._to_ask[worker] = True

    def _at(self, moment: float, happen: Callable[..., None], *arguments: object) -> None:
        self._made += 1
        heapq.heappush(self._events, (moment, self._made, happen, arguments))
