"""The cost of a step at any placement: the seconds of each worker and of each direction of each link, and the bound on a step.

Paper 000 (Eq. 9 to 12) has two workers and so four phases; paper 001 cuts a chain by its slowest part. Both are
max(T_max, T_sum / (K + 1)) with T over all parts that work at the same time. Here the tasks of a step give these parts.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from edge_agent.planning.cost import steady_seconds
from edge_agent.planning.tasks import Direction, Round, StepTasks

_LONG_AGO = (-math.inf, 0.0)
_Moment = tuple[float, float]
"""Seconds from the beginning of a step, and the seconds of these in which a message was on the way."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a step."""

    workers: Mapping[str, float]
    """T of each worker that has a part in a step: seconds of its work."""
    directions: Mapping[Direction, float]
    """T of each direction that carries a message: seconds that it is busy."""
    critical_seconds: float
    """T_sum: seconds of work and carrying from the moment a worker begins a step until it has done its part. The worker
    with the longest time counts, its round trips included."""
    round_trip_seconds: float
    """Seconds in the same time that messages travel. They keep no worker or link busy."""
    ahead: int
    """Steps that may be under way beyond the oldest: K, or more if nothing can be stale."""

    def longest(self) -> float:
        """Return T_max."""
        return max(*self.workers.values(), *self.directions.values(), 0.0)

    def total(self) -> float:
        """Return T_sum and the round trips: the seconds of a step that waits for no other."""
        return self.critical_seconds + self.round_trip_seconds

    def bound(self) -> float:
        """Return max(T_max, (T_sum + round trips) / (K + 1)): no run does a step in less, over many steps."""
        return float(steady_seconds(self.longest(), self.total(), self.ahead))


def step_cost(step: StepTasks) -> StepCost:
    """Return the cost of a step.

    T_sum is that of the source in a chain. With shared blocks, a worker that waits for their weights can take longer.
    Workers may be ahead of each other, so no worker is assumed to wait for another one to begin.
    """
    workers = {
        worker: sum(task.seconds + task.tail_seconds for task in tasks) for worker, tasks in step.workers.items()
    }
    directions: dict[Direction, float] = {}
    for tasks in step.workers.values():
        for delivery in (each for task in tasks for each in task.deliveries):
            directions[delivery.direction] = directions.get(delivery.direction, 0.0) + delivery.carry_seconds
    seconds, round_trip_seconds = max(_alone(step, each) for each in step.rounds())
    return StepCost(workers, directions, seconds - round_trip_seconds, round_trip_seconds, step.ahead)


def _alone(step: StepTasks, between: Round) -> _Moment:
    """Return the time from a worker's beginning of one task to its end of another, as far as `ahead` + 1 steps take it. All
    that does not depend on the first was ready long before."""
    beginner, first, last, share = between
    left = {worker: deque(enumerate(tasks)) for worker, tasks in step.workers.items()}
    ends: dict[tuple[str, int], _Moment] = {}
    carried = defaultdict[Direction, list[tuple[tuple[int, int, int], _Moment]]](list)
    arrivals = defaultdict[tuple[str, int], list[_Moment]](list)
    while left[beginner]:
        for worker, tasks in left.items():
            while tasks and len(arrivals[worker, tasks[0][0]]) == tasks[0][1].awaited:
                index, task = tasks.popleft()
                begun = (0.0, 0.0) if (worker, index) == (beginner, first) else _LONG_AGO
                begin = max([begun, *(ends[worker, before] for before in task.after), *arrivals[worker, index]])
                ends[worker, index] = _later(begin, task.seconds)
                if (worker, index) == (beginner, last):
                    seconds, travel_seconds = ends[worker, index]
                    return share * seconds, share * travel_seconds
                for each in task.deliveries:
                    moment = _later(begin, each.after_seconds)
                    if each.carry_seconds > 0.0:
                        urgency, others = each.urgency(0), carried[each.direction]
                        ahead = [other for how_urgent, other in others if how_urgent <= urgency]
                        moment = _later(max([moment, *ahead]), each.carry_seconds)
                        others.append((urgency, moment))
                    arrivals[each.direction[1], each.task].append(
                        _later(moment, each.travel_seconds, each.travel_seconds)
                    )
    raise AssertionError("a step does every task")


def _later(moment: _Moment, seconds: float, travel_seconds: float = 0.0) -> _Moment:
    return moment[0] + seconds, moment[1] + travel_seconds
