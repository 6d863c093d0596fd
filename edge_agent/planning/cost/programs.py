"""Loads of any placement, from the tasks of its step: every path through it that can be the longest under some conditions, or
the longest ones under given conditions.

`benchmarks.planning.step_cost` works for given rates, this for all rates at once; tests compare the two.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from edge_agent.planning.cost.conditions import Conditions, Direction
from edge_agent.planning.cost.loads import Loads, Paths
from edge_agent.planning.measurements import Floats
from edge_agent.planning.tasks import Round, StepTasks


def loads_of_step(step: StepTasks, names: Sequence[str], at: Conditions | None = None) -> Loads:
    """Return the loads of one layout.

    names: of all workers, in the order of the profile. at: conditions whose longest paths are enough, one for each way round;
    left out, all paths count, and where workers share blocks these are many.
    """
    places = {name: place for place, name in enumerate(names)}
    work: dict[int, Floats] = {}
    bits: dict[Direction, Floats] = {}
    for name, tasks in step.workers.items():
        work[places[name]] = np.array([sum(task.seconds + task.tail_seconds for task in tasks)])
        for each in (each for task in tasks for each in task.deliveries):
            direction = places[each.direction[0]], places[each.direction[1]]
            bits[direction] = bits.get(direction, np.zeros(1)) + each.bits
    table, count = _Table(len(names), at), len(names)
    found = table.joined(each.share * _ways_of(step, each, places, table) for each in step.rounds())
    pairs = [(near, far) for near in range(count) for far in range(count) if near != far]
    return Loads(
        np.array([step.ahead]),
        work,
        {},
        bits,
        Paths(
            np.array([0]),
            {place: found[:, place] for place in work},
            np.zeros(len(found)),
            {direction: found[:, table.bits(direction)] for direction in bits},
            {
                pair: found[:, table.half(pair)]
                for pair in pairs
                if pair[0] < pair[1] and found[:, table.half(pair)].any()
            },
        ),
    )


class _Table:
    """Paths as rows: work by worker, bits by direction, halves of round trips by pair. No rows stand for a time long ago."""

    def __init__(self, workers: int, at: Conditions | None) -> None:
        self._workers = workers
        self.columns = workers * (1 + 2 * workers)
        self._seconds: Floats | None = None
        """Seconds for each of a path's numbers, shape (columns,); None where all conditions count."""
        if at is not None:
            self._seconds = np.concatenate([at.factors, (1.0 / at.rates).ravel(), (at.trips / 2).ravel()])

    def bits(self, direction: Direction) -> int:
        """Return the column of a direction."""
        return self._workers * (1 + direction[0]) + direction[1]

    def half(self, direction: Direction) -> int:
        """Return the column of the trip between two workers, whichever sends."""
        return self._workers * (1 + self._workers + min(direction)) + max(direction)

    def joined(self, ways: Iterable[Floats]) -> Floats:
        """Join the paths of several ways round, each once."""
        each = [np.empty((0, self.columns)), *ways]
        return self.most(*each) if self._seconds is None else np.unique(np.concatenate(each), axis=0)

    def most(self, *ways: Floats) -> Floats:
        """Join these paths, without those that another one equals or exceeds, under the conditions or under all."""
        rows = np.concatenate([np.empty((0, self.columns)), *ways])
        if self._seconds is not None:
            return rows if len(rows) < 2 else rows[[np.argmax(rows @ self._seconds)]]
        rows = np.unique(rows, axis=0)
        kept: list[Floats] = []
        for row in rows[::-1]:
            if not any((other >= row).all() for other in kept):
                kept = [other for other in kept if not (row >= other).all()] + [row]
        return np.array(kept).reshape(-1, self.columns)


def _ways_of(step: StepTasks, between: Round, places: dict[str, int], table: _Table) -> Floats:
    """Return the paths from one of a worker's tasks to another. All that does not depend on the first was ready long before."""
    beginner, first, last, _ = between
    left = {worker: deque(enumerate(tasks)) for worker, tasks in step.workers.items()}
    ends: dict[tuple[str, int], Floats] = {}
    carried = defaultdict[Direction, list[tuple[tuple[int, int, int], Floats]]](list)
    arrivals = defaultdict[tuple[str, int], list[Floats]](list)
    while left[beginner]:
        for worker, tasks in left.items():
            while tasks and len(arrivals[worker, tasks[0][0]]) == tasks[0][1].awaited:
                index, task = tasks.popleft()
                begun = [np.zeros((1, table.columns))] if (worker, index) == (beginner, first) else []
                before = (ends[worker, one] for one in task.after)
                begin = table.most(*begun, *before, *arrivals[worker, index])
                ends[worker, index] = _later(begin, places[worker], task.seconds)
                if (worker, index) == (beginner, last):
                    return ends[worker, index]
                for each in task.deliveries:
                    direction = places[each.direction[0]], places[each.direction[1]]
                    moment = _later(begin, places[worker], each.after_seconds)
                    if each.bits > 0.0:
                        urgency, others = each.urgency(0), carried[direction]
                        ahead = [other for how_urgent, other in others if how_urgent <= urgency]
                        moment = _later(table.most(moment, *ahead), table.bits(direction), each.bits)
                        others.append((urgency, moment))
                    halves = 1.0 if each.travel_seconds > 0.0 else 0.0
                    arrivals[each.direction[1], each.task].append(_later(moment, table.half(direction), halves))
    raise AssertionError("a step does every task")


def _later(ways: Floats, column: int, amount: float) -> Floats:
    later = ways.copy()
    later[:, column] += amount
    return later
