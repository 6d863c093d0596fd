"""A worker in virtual time.

It does one task at a time and does not interrupt it. Each task does its steps in their order.
"""

from collections import defaultdict

from edge_agent.planning.tasks import Task

MOST_PERIODS = 4
"""Times K + 1 steps after which a run may repeat."""


class SimulatedWorker:
    """The progress of one worker, and its next task."""

    def __init__(self, tasks: tuple[Task, ...], steps: float, until: float, window: int, early: int) -> None:
        """until: the time from which it begins no more steps. window: K + 1, as `Task.behind` counts it. early: steps that
        samples leave ahead."""
        self.tasks = tasks
        self.done = [0] * len(tasks)
        """Number of steps in which each task is done. The step of that number is its next."""
        self.begun = defaultdict[int, list[float]](lambda: [0.0] * len(tasks))
        """Times at which each task of a step was begun, by step: of those under way, and of some before."""
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
        self._kept = (MOST_PERIODS + 2) * (window + early)
        """Number of steps whose times are kept: some workers are ahead of others."""
        waiting = defaultdict[int, set[int]](set)
        for index, task in enumerate(tasks):
            for before in (index, *task.after, *task.behind):
                waiting[before].add(index)
        self._waiting = [tuple(waiting[index]) for index in range(len(tasks))]
        """By task, those that may be ready once it is done."""
        self._bounded = tuple(index for index, task in enumerate(tasks) if task.behind)
        """Tasks that wait for whole steps before."""
        self._ready = set[int]()
        for index in range(len(tasks)):
            self.look_at(index)

    def next_task(self, now: float) -> int | None:
        """Return the task to begin now. One that takes no time, because it only notes a message, does not wait for the
        worker; one that begins a step does."""
        if not self._ready:
            return None
        tasks = self.tasks
        ready = sorted(index for index in self._ready if index or self._begins_step(now))
        for index in ready:
            if not tasks[index].takes_time and not (self.busy and tasks[index].begins):
                return index
        if self.busy or not ready:
            return None
        return max(ready, key=self._rank)

    def _rank(self, index: int) -> tuple[int, bool, bool, int]:
        task = self.tasks[index]
        return task.urgency, not task.awaited, index != self.last_task, self.done[index]

    def _begins_step(self, now: float) -> bool:
        step = self.done[0]
        return step < self._steps and (now < self._until or not step)

    def end(self, index: int, now: float) -> None:
        """Count a task as done of its next step."""
        step = self.done[index]
        self.done[index] += 1
        self._left[step] -= 1
        for other in self._waiting[index]:
            self.look_at(other)
        if not self._left[step]:
            del self._left[step]
            self.begun.pop(step - self._kept, None)
            self.ended.append(now)
            for other in self._bounded:
                self.look_at(other)

    def look_at(self, index: int) -> None:
        """Note whether a task is ready, after something that it waits for has come."""
        (self._ready.add if self._is_ready(index) else self._ready.discard)(index)

    def _is_ready(self, index: int) -> bool:
        step, task, done = self.done[index], self.tasks[index], self.done
        for before in task.after:
            if done[before] <= step:
                return False
        for come in self.arrived[index]:
            if come <= step:
                return False
        return self._is_new_enough(step - task.early, task.behind)

    def _is_new_enough(self, step: int, behind: tuple[int, ...]) -> bool:
        """Tell whether the tasks are done that one waits for of an earlier step, and all of the step before that."""
        before = step - self._window
        return not behind or (before <= len(self.ended) and all(self.done[task] > before for task in behind))
