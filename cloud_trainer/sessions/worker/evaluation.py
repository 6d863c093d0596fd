"""The evaluations that a worker takes part in, one after the other."""

import asyncio

import grpc

from cloud_trainer.sessions.links import SessionLinks
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.rpc.status import StatusError


class WorkerEvaluation:
    """An evaluation, from its beginning to its end. Used on the event loop."""

    def __init__(self, number: int, executor: PlacementExecutor) -> None:
        """executor: it computes already."""
        self.number = number
        self.executor = executor
        self._ended = asyncio.Event()

    async def end(self) -> None:
        """Stop computing. Repeating the call changes nothing."""
        self._ended.set()
        await self.executor.stop()

    async def wait_until_ended(self) -> None:
        """Wait until the evaluation is ended."""
        await self._ended.wait()


class Evaluations:
    """The evaluations of one session: one at a time, in the order of their numbers. Used on the event loop."""

    def __init__(self, worker: SessionWorker, links: SessionLinks) -> None:
        self._worker = worker
        self._links = links
        self._last_number = 0
        self._now: WorkerEvaluation | None = None

    async def begin(self, number: int, batches: int) -> WorkerEvaluation:
        """Take part in an evaluation. An earlier one ends. Called inside `Session.changing`.

        batches: see `PlacedWorker.evaluation`. Raises StatusError, and ModelError where a metric cannot be made.
        """
        if number <= self._last_number:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"evaluation {number} is asked for; the last one was {self._last_number}, and numbers rise",
            )
        if self._worker.executor.under_way or not self._worker.is_whole:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no evaluation can begin while {self._worker.under_way} is under way",
            )
        await self.end()
        self._last_number = number
        self._now = WorkerEvaluation(number, await self._worker.evaluation(batches))
        return self._now

    def executor(self, number: int) -> PlacementExecutor | None:
        """Return the steps of an evaluation; None if it is not under way."""
        return None if self._now is None or self._now.number != number else self._now.executor

    async def end(self, evaluation: WorkerEvaluation | None = None) -> None:
        """End this evaluation, unless it has ended. None ends the current one, if any."""
        if self._now is None or evaluation not in (None, self._now):
            return
        ended, self._now = self._now, None
        await self._links.end(ended.number)
        await ended.end()

    def begin_again(self) -> None:
        """Count evaluations from 1 again: another agent has the session."""
        self._last_number = 0
