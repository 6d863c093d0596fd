"""Workers on the loop whose segments take as long as a plan says, in virtual time."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from edge_agent.planning import StepTasks
from shared.concurrency.threads import WorkerThread
from shared.execution.step_scheduler import StepScheduler, Work
from shared.placement import Program
from shared.training.losses import BatchLoss

_COMPUTED: list[int] = []
"""The segments that were computed in the call of now: all workers take turns on the loop."""
_FINISH = StepScheduler.finish


def _finish(steps: StepScheduler, work: Work) -> BatchLoss | None:
    _COMPUTED.append(work.segment)
    return _FINISH(steps, work)


@contextmanager
def noted_segments() -> Iterator[None]:
    """Let `Paced` workers know their segments."""
    with patch.object(StepScheduler, "finish", _finish):
        yield


class Paced(WorkerThread):
    """A worker that computes on the loop. Each segment takes its seconds, after which its results are heard of."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds

    @property
    def is_wanted(self) -> bool:
        """Tell that the loop wants a turn: each call is one piece of work."""
        return True

    async def run(self, function):
        """See `WorkerThread`. To begin a batch takes no time."""
        _COMPUTED.clear()
        result = function()
        await asyncio.sleep(sum(self._seconds[segment] for segment in _COMPUTED))
        return result


def paced(worker: str, step: StepTasks, sent_first: Program) -> Paced:
    """Return a worker that takes as long as its tasks.

    sent_first: see `segments`; it is a task, too, or two, where samples leave before their step begins.
    """
    tasks = step.workers.get(worker, ())
    leading = (2 if tasks[0].early else 1) if sent_first else 0
    return Paced([task.seconds for task in tasks[leading:]])
