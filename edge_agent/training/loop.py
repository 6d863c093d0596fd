"""The steps of an experiment, once: over as many streams and from as many checkpoints as it takes, to the weights at home."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.observability.activity import Activity, Doing
from edge_agent.observability.observer import RunObserver
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.connection import Connection, WentBack
from edge_agent.training.deployer import Deployer
from edge_agent.training.divergence import LossJudge, check_weights, first_not_finite, last_word
from edge_agent.training.evaluations import Evaluations
from edge_agent.training.pause import Pause
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.prefetch import Prefetcher
from edge_agent.training.result import Summary, TrainingResult
from edge_agent.training.session import EdgeSession
from edge_agent.training.session_store import SessionRecord, StoredSession
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.workers import Workers
from shared.checkpoint import CheckpointName, LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.client.training_call import Stream
from shared.codec import FeedbackMode
from shared.errors import DivergedError, IsthmusError, SessionLostError, StoppedError, StorageError
from shared.model.build import check_cut
from shared.training.policies import POLICIES, BackwardPolicy
from shared.training.stage_state import put_back
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.trainer_pb2 import Attached, TrainResponse

_log = structlog.get_logger(__name__)


class TrainingRun:
    """The steps of an experiment, once, with one trainer."""

    def __init__(
        self,
        experiment: Experiment,
        observer: RunObserver,
        workers: Workers,
        client: TrainerClient,
        on_start: Callable[[Deployer], None],
        shutdown: Shutdown,
        pause: Pause,
        on_activity: Callable[[], None],
    ) -> None:
        """on_activity: told when `activity` changes."""
        self._experiment = experiment
        self._observer = observer
        self._workers = workers
        self._client = client
        self._shutdown = shutdown
        self._pause = pause
        self._doing = Doing(on_activity)
        config = experiment.config
        self._retry = Retry(config.trainer.give_up_seconds, on_activity)
        self._pipeline = Pipeline(
            self._policy(),
            experiment.deployment,
            FeedbackMode(config.deployment.feedback),
            workers,
            observer,
            experiment.staleness_changes,
        )
        self._pipeline.on_note = self._take_note
        self._pipeline.on_loss = LossJudge(config.training.on_nan).judge
        pause.on_request = self._pipeline.drain
        self.deployer = Deployer(self._pipeline, experiment.chain, experiment.stage, observer.migration_failed)
        self._step = 0
        self._evaluations = Evaluations(experiment, observer)
        self._trainer_stops = False
        self._stored: StoredSession | None = None
        self._session: EdgeSession
        self._connection: Connection
        self._checkpointer: Checkpointer
        on_start(self.deployer)

    @property
    def activity(self) -> Activity:
        """What the run is doing."""
        if self._shutdown.requested:
            return Activity.STOPPING
        return Activity.AWAY if self._retry.away else self._doing.now

    @property
    def pipeline(self) -> Pipeline:
        """What trains."""
        return self._pipeline

    @property
    def stored(self) -> StoredSession | None:
        """The session and what is kept of it; None while it opens."""
        return self._stored

    @property
    def checkpointer(self) -> Checkpointer:
        """Takes checkpoints of an open session."""
        return self._checkpointer

    @property
    def attached(self) -> bool:
        """Whether the training stream of an open session is attached."""
        return self._connection.attached

    @property
    def blocks(self) -> int:
        """Of the whole model."""
        return len(self._experiment.chain.blocks)

    async def max_staleness(self) -> int:
        """The largest K that the trainer lets the open session have. Raises UnreachableError, RefusedError."""
        return (await self._client.get_session(self._session.id)).max_staleness

    @property
    def session_id(self) -> str:
        """The open session's."""
        return self._session.id

    @property
    def resumable(self) -> bool:
        """Whether both sides have had a checkpoint of this session."""
        return self._stored is not None and self._stored.shared is not None

    @property
    def advanced(self) -> bool:
        """Whether a step was done."""
        return self._pipeline.position.report > 0

    async def run(self, on_result: Callable[[TrainingResult], object], *, resumed: bool) -> TrainingResult:
        """The whole run, from the beginning or from what was kept; a failed one can be resumed, a finished one is closed."""
        started = time.monotonic()
        try:
            self._listen_for_stop()
            try:
                await self._train(resumed=resumed)
            except DivergedError as diverged:
                if good := await self._bring_last_good_home():
                    await asyncio.to_thread(on_result, await self._result(started, diverged.step))
                raise last_word(diverged, self._step if good else None) from None
            result = await self._result(started)
            await asyncio.to_thread(on_result, result)
        except asyncio.CancelledError:
            await self._leave()
            if self._shutdown.requested:
                raise self._stopped() from None
            raise
        except BaseException:
            await self._leave()
            raise
        finally:
            self._shutdown.patience_ended()
        await self._checkpointer.stop()
        assert self._stored is not None
        await self._workers.disk.run(self._stored.remove)
        await self._session.farewell(self._connection)
        return result

    async def _result(self, started_seconds: float, diverged_at_step: int | None = None) -> TrainingResult:
        """Figures and module; both sides' blocks are on the host then, wherever they ran."""
        await self._workers.compute.run(self._experiment.chain.module.to, "cpu")
        progress, cut, chain = self._observer.progress, self._pipeline.announced.cut, self._experiment.chain
        seconds, test_loss = time.monotonic() - started_seconds, self._evaluations.loss
        summary = Summary.of(self._session.id, progress, test_loss, seconds, chain, cut, diverged_at_step)
        return TrainingResult(summary, chain.module)

    async def open(self, stored: StoredSession | None, folder: LocalFiles | None) -> None:
        """Open a session, or take the one that was kept."""
        experiment, config, workers = self._experiment, self._experiment.config, self._workers
        if stored is None:
            self._session = await EdgeSession.open(self._client, experiment, workers, self._retry)
            record = SessionRecord.begun_now(self._session.id, experiment)
            try:
                stored = await workers.disk.run(StoredSession.begin, record, folder, config.checkpoints.keep)
            except BaseException:
                with suppress(IsthmusError):
                    await self._session.close()
                raise
            _log.info(
                "session opened", session=record.session_id, cut=experiment.deployment.cut, steps=experiment.steps
            )
        else:
            self._session = EdgeSession(stored.record.session_id, self._client, experiment, workers, self._retry)
            _log.info("session resumed", session=stored.record.session_id, steps=experiment.steps)
        structlog.contextvars.bind_contextvars(session=self._session.id)
        self._stored = stored
        self._observer.opened(self._session.id, self._pipeline, len(experiment.chain.blocks))
        self._connection = Connection(
            self._client,
            stored,
            workers.disk,
            self._retry,
            self._pipeline.in_flight,
            self._observer.delivered,
            self._attached,
            self._observer.detached,
        )
        if config.checkpoints.step_log is not None:
            self._pipeline.step_log = StepLog(config.checkpoints.step_log, self._session.id, "edge")
        self._session.fence = lambda: self._connection.fence
        self._checkpointer = Checkpointer(
            config.checkpoints, stored, workers, self._pipeline.drain, self._observer.checkpoint_shared
        )
        if self._checkpointer.keeps:
            self._observer.checkpoint_shared()  # the beginning is what both share

    async def _leave(self) -> None:
        """The run ends before it is done: free what the trainer holds in memory, and what it keeps if that is of no use."""
        self._connection.drop()
        await self._checkpointer.stop()
        await self._session.abandon(resumable=self.resumable)
        assert self._stored is not None
        with suppress(IsthmusError):
            if self.resumable:
                self._stored.release()
            else:
                await self._workers.disk.run(self._stored.remove)

    async def _train(self, *, resumed: bool) -> None:
        """All epochs, over as many streams and from as many checkpoints as it takes; then the cloud's weights come home."""
        position = None if resumed else self._pipeline.position
        attached = await self._retry.run(lambda: self._connection.attach(position))
        back = attached if attached.HasField("restored") else None
        self._checkpointer.begin(0)
        while True:
            try:
                if back is not None:
                    position = None
                    back = await self._go_back(back)
                    continue
                position = self._pipeline.position
                self._doing.begin(Activity.TRAINING)
                await self._steps()
                self._doing.begin(Activity.FINISHING)
                await self._session.collect(self._pipeline.announced.cut)
                check_weights(self._experiment.chain.module, self._experiment.config.training.on_nan, self._step)
                return
            except WentBack as went:
                back = went.attached
            except SessionLostError as lost:  # a call found a trainer that was restarted
                position = None if position is None else self._pipeline.position
                try:
                    attached = await self._connection.resume(lost, position)
                    self._pipeline.announced = attached.deployment
                except WentBack as went:
                    back = went.attached

    async def _go_back(self, attached: Attached) -> Attached | None:
        """Be as the checkpoint says that the trainer has gone back to; returns another answer when ours is damaged."""
        await self._workers.compute.run(lambda: None)  # what was computed for the life before has ended
        experiment, stored = self._experiment, self._stored
        name = CheckpointName(attached.restored.lineage, attached.restored.step)
        assert stored is not None
        assert stored.store is not None, "the trainer goes back to what it was offered"
        deployment = attached.deployment
        try:
            checkpoint = await self._workers.disk.run(stored.store.load, name)
            check_cut(deployment.cut, experiment.chain)
            await self._workers.compute.run(put_back, experiment.stage, 0, deployment.cut, checkpoint.data)
        except StorageError as failure:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
            await self._workers.disk.run(stored.damaged, name)
            return await self._retry.run(lambda: self._connection.attach(None))
        await self._session.upload_static(list(attached.block_digests), deployment.cut, deployment.epoch)
        self._pipeline.restart(self._policy(), deployment, name.step)
        if self._pipeline.step_log is not None:
            self._pipeline.step_log.went_back(name.step)
        self._step = name.step
        self._evaluations.step = checkpoint.facts.get("evaluated_step", 0)
        await self._workers.disk.run(stored.set_shared, name)
        self._checkpointer.begin(name.step)
        self._observer.went_back(name.step, deployment.cut)
        _log.info("went back to a checkpoint", step=name.step, cut=deployment.cut)
        return None

    async def _bring_last_good_home(self) -> bool:
        """Fill the user's module from the newest checkpoint of both sides that is finite; False where none can be had.

        What is in memory is of no use: the updates after the loss that told have spoilt it on one side or both.
        """
        module, stored = self._experiment.chain.module, self._stored
        assert stored is not None
        self._doing.begin(Activity.FINISHING)
        try:
            while stored.shared is not None:
                back: Attached | None = await self._retry.run(lambda: self._connection.attach(None))
                while back is not None:
                    back = await self._go_back(back)
                await self._session.collect(self._pipeline.announced.cut)
                if first_not_finite(module) is None:
                    return True
                await self._workers.disk.run(stored.damaged, stored.shared)
        except IsthmusError as failure:
            _log.warning("no good weights are to be had", reason=str(failure))
        return False

    async def _steps(self) -> None:
        """The steps that are left, in stretches that end where something is due; with evaluations between them."""
        loader, steps = self._experiment.loader, self._experiment.steps
        async with Prefetcher(loader.iterate(self._step, steps), self._workers.load) as batches:
            while True:
                if self._evaluations.due(self._step):
                    with self._doing.during(Activity.EVALUATING):
                        await self._evaluations.evaluate(self._session, self._pipeline.announced, self._step)
                if self._step == steps:
                    return
                if self._shutdown.requested:
                    await self._stop_here()
                if self._pause.requested:
                    with self._doing.during(Activity.PAUSED):
                        await self._pause.wait(self._shutdown, self._pipeline, self._connection, self._at_boundary)
                    continue
                epoch = self._step // loader.steps_per_epoch
                epoch_end = min((epoch + 1) * loader.steps_per_epoch, steps)
                stop_step = self._checkpointer.boundary(self._step, epoch_end)
                self._step = await self._pipeline.run(self._connection, batches, self._step, stop_step)
                self._observer.drained()
                await self._at_boundary()

    async def _at_boundary(self) -> None:
        """Do what waits for a moment with nothing in flight."""
        with self._doing.during(Activity.MIGRATING) if self.deployer.moving else nullcontext():
            pause_seconds = await self.deployer.settle(self._session, self._step)
        if pause_seconds is not None:
            self._observer.migrated(self.deployer.deployment.cut, pause_seconds)
            self._checkpointer.ask_here()  # or going back would move the cut back
        if self._checkpointer.due(self._step) and self._step < self._experiment.steps:
            await self._checkpoint()
        if self._trainer_stops:
            await self._let_trainer_stop()

    async def _checkpoint(self) -> None:
        started = time.monotonic()
        facts = {"evaluated_step": self._evaluations.step}
        await self._checkpointer.take(self._step, self._connection, self._experiment.stage, facts)
        self._observer.checkpointed(time.monotonic() - started)

    async def _last_checkpoint(self) -> None:
        """One of this very step on both sides, if that can be had."""
        try:
            await self._checkpointer.settled(self._connection)
            self._checkpointer.ask_here()
            if self._checkpointer.due(self._step):
                await self._checkpoint()
                await self._checkpointer.settled(self._connection)
        except IsthmusError as failure:
            _log.warning("no last checkpoint", step=self._step, reason=str(failure))

    async def _let_trainer_stop(self) -> None:
        """The trainer is about to stop: leave it with a checkpoint, and come back when it does."""
        self._trainer_stops = False
        await self._last_checkpoint()
        with suppress(IsthmusError):
            await self._connection.end()

    async def _stop_here(self) -> None:
        await self._last_checkpoint()
        with suppress(IsthmusError):
            await self._connection.end()
        raise self._stopped()

    def _stopped(self) -> StoppedError:
        stored = (
            f"`{self._shutdown.resume_command}` goes on"
            if self.resumable
            else "nothing is kept, so the next run is a new one"
        )
        return self._shutdown.error(f"at step {self._step} of {self._experiment.steps}; {stored}")

    def _listen_for_stop(self) -> None:
        def shutdown() -> float:
            self._pipeline.drain()
            # With the trainer away nothing can be drained, and no checkpoint be taken on both sides.
            return 0.0 if self._retry.away else self._experiment.config.checkpoints.stop_seconds

        self._shutdown.when_requested(shutdown)

    def _attached(self, stream: Stream) -> None:
        self._checkpointer.stream_lost()  # what the one before had still to say
        self._observer.attached(stream)

    def _take_note(self, message: TrainResponse) -> None:
        if message.HasField("checkpointed"):
            self._checkpointer.heard(message.checkpointed)
        elif message.HasField("stopping"):
            _log.info("the trainer is about to stop")
            self._trainer_stops = True
            self._pipeline.drain()

    def _policy(self) -> BackwardPolicy:
        return POLICIES[self._experiment.config.deployment.backward](self._experiment.stage)
