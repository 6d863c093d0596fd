"""Evaluation of a run's model on the test set, as placed: every worker computes its blocks forward."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, closing
from typing import NamedTuple

import torch

from edge_agent.data import EvaluationLoader
from edge_agent.data.prefetch import Prefetcher
from edge_agent.experiment.whole_model import judged_batch
from edge_agent.sessions.links_between import dial_peers
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.links import Links
from shared.client.retry import Spacing
from shared.concurrency.tasks import run_unless_failed
from shared.errors import ProtocolError
from shared.events import Events, ignore
from shared.events.worker import WorkerDone
from shared.model.chain import Chain
from shared.runtime.placed_worker import PlacedWorker
from shared.runtime.placement_executor import PlacementExecutor
from shared.training.losses import LossHead
from shared.training.metrics import Judged, load_metrics
from shared.training.recipe import Recipe


class Evaluation(NamedTuple):
    """The result of an evaluation."""

    loss: float
    """Mean over all samples."""
    accuracy: float | None
    """Share of correct samples; None if the loss is not of classes."""
    metrics: Mapping[str, float]
    """Values of `training.metrics`, by their names."""


def evaluated_whole(chain: Chain, recipe: Recipe, test: EvaluationLoader) -> Evaluation:
    """Evaluate a model on this thread, with nothing between its blocks. Raises ModelError where it fails here."""
    head, metrics, loss, correct, samples = LossHead(recipe.loss, None), load_metrics(recipe, None), 0.0, 0, 0
    tally, has_classes = None if metrics is None else metrics.tally(test.batches), True
    with closing(test.iterate()) as batches, torch.no_grad():
        for batch in batches:
            found = judged_batch(chain, recipe, head, batch, tally)
            samples += found.samples
            loss += found.loss * found.samples
            has_classes = has_classes and found.correct is not None
            correct += found.correct or 0
    values = {} if metrics is None or tally is None else metrics.shown(tally.values())
    return Evaluation(loss / samples, correct / samples if has_classes else None, values)


class Evaluator:
    """The evaluations of one session."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._number = 0

    async def evaluate(self, worker: PlacedWorker, test: EvaluationLoader) -> Evaluation:
        """Evaluate `test` with the present weights. Nothing may be in flight. An evaluation whose links are lost begins again.

        Raises the IsthmusError of a failure.
        """
        spacing = Spacing()

        async def attempt() -> Evaluation:
            await spacing.wait(None)
            return await self._evaluate(worker, test)

        return await self._session.retry.run(attempt)

    async def _evaluate(self, worker: PlacedWorker, test: EvaluationLoader) -> Evaluation:
        session, plan = self._session, worker.plan.evaluation
        self._number += 1
        events = Events()
        totals = _Totals(events)
        batches = 0 if worker.metrics is None else test.batches
        async with AsyncExitStack() as stack:
            tickets = {}
            # Others are admitted and released meanwhile.
            for name, trainer in [one for one in session.members.items() if plan.program(one[0])]:
                tickets[name] = (await stack.enter_async_context(trainer.evaluation(self._number, batches))).tickets
            await dial_peers(session, tickets, self._number)
            executor = await worker.evaluation(events.emit, batches)
            stack.push_async_callback(executor.stop)
            links = await stack.enter_async_context(Links(session, executor, ignore, self._number))
            await run_unless_failed(self._feed(executor, test, totals), links.failure, executor.failure)
        loss, accuracy = totals.result()
        if worker.metrics is None:
            return Evaluation(loss, accuracy, {})
        judges = [tile.worker for tile in plan.placement.holders(plan.placement.blocks - 1)]
        told = [totals.judged[name] for name in judges]
        return Evaluation(loss, accuracy, await session.threads.compute.run(worker.metrics.of_all, told))

    async def _feed(self, executor: PlacementExecutor, test: EvaluationLoader, totals: "_Totals") -> None:
        async with Prefetcher(
            test.iterate(), self._session.threads.reading, executor.note_ready, test.reading
        ) as batches:
            executor.read_from(batches, test.batches)
            try:
                await run_unless_failed(totals.until(lambda: executor.window.settled >= test.batches), batches.failure)
            finally:
                executor.read_no_more()  # otherwise the compute thread could be in the batches while they close


class _Totals:
    def __init__(self, events: Events) -> None:
        events.subscribe(WorkerDone, self._count)
        self._progressed = asyncio.Event()
        self._samples, self._loss, self._correct = 0, 0.0, 0
        self._has_classes = True
        self.judged: dict[str, Judged] = {}
        """Results of the metrics at each worker, after its last step."""

    def _count(self, event: WorkerDone) -> None:
        """Count a worker's results for a batch."""
        done = event.report
        if done.samples:
            self._samples += done.samples
            self._loss += done.loss * done.samples
            self._has_classes = self._has_classes and done.HasField("correct")
            self._correct += done.correct
        self.judged[done.worker] = Judged(done.step, tuple(done.metric_values), tuple(done.metric_states))
        self._progressed.set()

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Wait until a condition holds. It is checked whenever a worker has evaluated a batch."""
        while not is_done():
            self._progressed.clear()
            await self._progressed.wait()

    def result(self) -> tuple[float, float | None]:
        """Return the loss and the accuracy: means over all samples."""
        if not self._samples:
            raise ProtocolError("the evaluation has judged no sample")
        accuracy = self._correct / self._samples if self._has_classes else None
        return self._loss / self._samples, accuracy
