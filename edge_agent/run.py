"""One training run from the edge's side: open a session, train epoch by epoch, evaluate, bring the weights home.

`train` is the call for a notebook; `edge-agent run` makes the same one.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import structlog
import torch
from prometheus_client import CollectorRegistry

from edge_agent.batches import Prefetcher
from edge_agent.client import TrainerClient
from edge_agent.config import EdgeConfig
from edge_agent.deployer import Deployer
from edge_agent.experiment import Experiment
from edge_agent.observer import Progress, RunObserver
from edge_agent.pipeline import Pipeline
from edge_agent.result import BlockPlace, Summary, TrainingResult
from edge_agent.session import EdgeSession
from edge_agent.timeline import Timeline
from edge_agent.workers import Workers
from shared.codec import FeedbackMode
from shared.errors import IsthmusError
from shared.model.policies import POLICIES
from shared.telemetry.metrics import TrainingMetrics, serve_metrics
from shared.transport.malloc import keep_message_memory

_log = structlog.get_logger(__name__)


def _ignore(_news: object) -> None:
    pass


def train(config: EdgeConfig, on_progress: Callable[[Progress], None] = _ignore) -> TrainingResult:
    """Train as `config` says and return the figures and the trained module. Blocks until it is done.

    Works in a notebook, whose own event loop is left alone. on_progress: called after every step, on another thread.
    Raises IsthmusError (`shared.errors`) for everything that a user, the data or the trainer can get wrong.
    """
    stoppers: list[Callable[[], object]] = []

    def run() -> TrainingResult:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(run_training(config, on_progress))
            stoppers.append(lambda: loop.call_soon_threadsafe(task.cancel))
            return loop.run_until_complete(task)

    with ThreadPoolExecutor(1, thread_name_prefix="edge-agent") as executor:
        running = executor.submit(run)
        try:
            return running.result()
        except KeyboardInterrupt:
            for stop in stoppers:  # an interrupted notebook cell must not leave the run behind
                stop()
            raise


async def run_training(
    config: EdgeConfig,
    on_progress: Callable[[Progress], None] = _ignore,
    on_start: Callable[[Deployer], None] = _ignore,
) -> TrainingResult:
    """`train` for callers that have an event loop of their own; nothing heavy runs on it.

    on_start: given, before the first step, what can change the deployment while the run goes on.
    """
    keep_message_memory()
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    experiment = await asyncio.to_thread(Experiment, config)
    metrics = TrainingMetrics(CollectorRegistry())
    if config.metrics.listen is not None:
        _log.info("metrics", address=serve_metrics(config.metrics.listen, metrics.registry))
    timeline = Timeline() if config.output.trace is not None else None
    observer = RunObserver(metrics, Progress(experiment.steps), on_progress, timeline)
    trainer = config.trainer
    with Workers.started() as workers:
        async with TrainerClient(trainer.address, config.link, trainer.connect_timeout_seconds) as client:
            result = await _Run(experiment, observer, workers, on_start).over(client)
    if timeline is not None and config.output.trace is not None:
        await asyncio.to_thread(timeline.write, config.output.trace)
    return result


class _Run:
    """The steps of an experiment, once, with one trainer."""

    def __init__(
        self,
        experiment: Experiment,
        observer: RunObserver,
        workers: Workers,
        on_start: Callable[[Deployer], None],
    ) -> None:
        self._experiment = experiment
        self._observer = observer
        self._workers = workers
        settings = experiment.config.deployment
        self._pipeline = Pipeline(
            POLICIES[settings.backward](experiment.stage),
            experiment.deployment,
            FeedbackMode(settings.feedback),
            workers,
            observer,
        )
        self._deployer = Deployer(self._pipeline, experiment.chain, experiment.stage, observer.migration_failed)
        on_start(self._deployer)

    async def over(self, client: TrainerClient) -> TrainingResult:
        """The whole run with a trainer that answers; its session is closed at the end, whatever happens."""
        started = time.monotonic()
        session = await EdgeSession.open(client, self._experiment, self._workers)
        structlog.contextvars.bind_contextvars(session=session.id)
        _log.info("session opened", cut=self._experiment.deployment.cut, steps=self._experiment.steps)
        try:
            test_loss = await self._train(session)
            await session.collect(self._pipeline.announced.cut)
        except BaseException:
            with suppress(IsthmusError):  # the reason of the failure matters, not that of the farewell
                await session.close()
            raise
        await session.close()
        return TrainingResult(
            self._summary(session.id, test_loss, time.monotonic() - started), self._experiment.chain.module
        )

    async def _train(self, session: EdgeSession) -> float | None:
        """All epochs over one stream; returns the loss of the last evaluation."""
        call = await session.attach(0, self._pipeline.in_flight.accept, self._observer.delivered)
        self._observer.watch(call.stream)
        loader, steps, step = self._experiment.loader, self._experiment.steps, 0
        test_loss = None
        try:
            async with Prefetcher(loader.iterate(step, steps), self._workers.load) as batches:
                while step < steps:
                    epoch = step // loader.steps_per_epoch
                    stop_step = min((epoch + 1) * loader.steps_per_epoch, steps)
                    if step == epoch * loader.steps_per_epoch and self._experiment.staleness_changes(epoch):
                        self._pipeline.change(staleness=self._experiment.staleness(epoch))
                    step = await self._pipeline.run(call.stream, batches, step, stop_step)
                    if (pause_seconds := await self._deployer.settle(session, step)) is not None:
                        self._observer.migrated(pause_seconds)
                    if step == stop_step and self._evaluation_due(epoch + 1, last=step == steps):
                        test_loss = await self._evaluate(session, epoch + 1)
            await call.end()
        except BaseException:
            call.cancel()
            raise
        return test_loss

    def _evaluation_due(self, epochs_done: int, *, last: bool) -> bool:
        every = self._experiment.config.training.evaluate_every_epochs
        return self._experiment.test is not None and (last or (every > 0 and epochs_done % every == 0))

    async def _evaluate(self, session: EdgeSession, epoch: int) -> float:
        assert self._experiment.test is not None
        totals = await session.evaluate(self._experiment.test, self._pipeline.announced)
        accuracy = totals.correct / totals.samples if totals.HasField("correct") else None
        self._observer.evaluated(accuracy)
        _log.info("evaluated", epoch=epoch, loss=round(totals.loss, 4), accuracy=accuracy)
        return totals.loss

    def _summary(self, session_id: str, test_loss: float | None, seconds: float) -> Summary:
        progress, cut = self._observer.progress, self._pipeline.announced.cut
        return Summary(
            session=session_id,
            accuracy=progress.accuracy,
            test_loss=test_loss,
            train_loss=progress.loss,
            seconds=round(seconds, 3),
            steps=progress.steps,
            samples_per_second=round(progress.samples / seconds, 1),
            bytes_up=progress.bytes_up,
            bytes_down=progress.bytes_down,
            cut=cut,
            blocks=[
                BlockPlace(
                    block.name,
                    "edge" if block.index < cut else "cloud",
                    sum(parameter.numel() for parameter in block.named_parameters().values()),
                )
                for block in self._experiment.chain.blocks
            ],
        )
