"""Stretches of steps: batches go to this device's worker, and each stretch ends with nothing in flight anywhere."""

import asyncio
from collections.abc import Generator

from edge_agent.data import Batch, BatchLoader
from edge_agent.data.prefetch import Prefetcher
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.links import Links
from edge_agent.training.step_aggregator import StepAggregator
from edge_agent.training.step_boundary import StepBoundary
from shared.concurrency.tasks import run_unless_failed
from shared.runtime.placed_worker import PlacedWorker


class StepRunner:
    """The runner of steps: it brings batches to this device's worker, and waits until all workers have done them. Used
    on the event loop."""

    def __init__(
        self, session: OpenSession, worker: PlacedWorker, aggregator: StepAggregator, boundary: StepBoundary
    ) -> None:
        self._session = session
        self._worker = worker
        self._aggregator = aggregator
        self._boundary = boundary
        self._batches: Prefetcher | None = None

    @property
    def in_flight(self) -> int:
        """Count the batches as `Window.held_up` does."""
        return self._worker.executor.window.held_up

    @property
    def waiting(self) -> dict[str, int]:
        """Count waiting work by queue: batches to begin, tensors for a link, and steps whose error gradient has arrived."""
        ready, waiting = 0 if self._batches is None else len(self._batches), self._worker.executor.waiting
        return {"compute": ready, "send": waiting["send"], "apply": waiting["arrived"]}

    def batches_from(self, step: int, stop_step: int) -> Prefetcher:
        """Return the batches of these steps, fetched ahead."""
        loader, thread = self._session.experiment.loader, self._session.threads.reading
        source = self._read(loader, step, stop_step)
        self._batches = Prefetcher(source, thread, self._worker.executor.note_ready, loader.reading)
        return self._batches

    def _read(self, loader: BatchLoader, step: int, stop_step: int) -> Generator[Batch]:
        window = self._worker.executor.window
        if window.plan.recalls:
            return loader.lacking(step, stop_step, window.first)
        if window.plan.counts_labels:
            return loader.counted(step, stop_step, self._session.experiment.recipe)
        return loader.iterate(step, stop_step)

    async def do(self, links: Links, batches: Prefetcher, stop_step: int) -> None:
        """Do the steps before `stop_step`, which is a boundary, or fewer if one is requested. On return, nothing is in flight.

        Raises the IsthmusError that ends training, or that the links cannot mend.
        """
        executor = self._worker.executor
        executor.read_from(batches, stop_step)
        try:
            with self._boundary.stopping(executor.read_to_boundary):
                await run_unless_failed(
                    self._reach(stop_step), executor.failure, self._aggregator.failure, links.failure, batches.failure
                )
        finally:
            executor.read_no_more()

    async def _reach(self, stop_step: int) -> None:
        reached = self._aggregator.reaching(stop_step)
        requested = asyncio.create_task(self._boundary.wait_for_request())
        try:
            await asyncio.wait({reached, requested}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requested.cancel()
        if not reached.done():
            await self._aggregator.reaching(self._worker.executor.read_to_boundary())
