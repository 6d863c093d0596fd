"""A training run: all steps of an experiment, over as many streams and from as many checkpoints as that takes.

It ends with the trained weights of both sides in the user's module, or with the error that nothing could mend.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import NoReturn

import structlog

from edge_agent.data.prefetch import Prefetcher
from edge_agent.sessions.open_session import FAREWELL_SECONDS, OpenSession
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.deployer import Deployer
from edge_agent.training.divergence import LossCheck, check_weights, first_not_finite, with_outcome
from edge_agent.training.edge_compute import EdgeCompute
from edge_agent.training.evaluations import Evaluations
from edge_agent.training.listener import Activity, CurrentActivity, RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.messages import TrainerMessages
from edge_agent.training.pause import Pause
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.recovery import Reattached, Recovery, TrainerRestored
from edge_agent.training.result import Summary, TrainingResult
from edge_agent.training.statistics import Statistics
from edge_agent.training.training_stream import TrainingStream
from edge_agent.training.window import Window
from shared.codec import FeedbackMode
from shared.errors import DivergedError, IsthmusError, SessionLostError, StoppedError, StorageError
from shared.placement import AGENT
from shared.training.policies import POLICIES

_log = structlog.get_logger(__name__)


class TrainingRun:
    """Runs the steps of an experiment, in one open session. Used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        pause: Pause,
        listener: RunListener,
        statistics: Statistics,
    ) -> None:
        """pause: an operator's; knows the shutdown and the step boundary too. statistics: of this run, for the summary."""
        experiment, config, boundary = session.experiment, session.experiment.config, pause.boundary
        self.session = session
        self._experiment = experiment
        self._boundary = boundary
        self._shutdown = pause.shutdown
        self._pause = pause
        self._listener = listener
        self._statistics = statistics
        self._activity = CurrentActivity(listener)
        self._window = Window(session.first_step)
        self._live = LiveDeployment(experiment.deployment, listener, experiment.staleness_changes)
        feedback = FeedbackMode(config.deployment.feedback)
        policy = POLICIES[config.deployment.backward]
        self._compute = EdgeCompute(experiment.held, policy, feedback, session.workers, session.step_log)
        self.checkpointer = Checkpointer(config.checkpoints, session.stored, session.workers, boundary, listener)
        self._messages = TrainerMessages(LossCheck(config.training.on_nan), self.checkpointer, boundary)
        self.pipeline = Pipeline(self._compute, self._window, self._live, boundary, listener, self._messages.take)
        self.training_stream = TrainingStream(
            session.client, session.stored, session.workers.disk, self._window, listener
        )
        self._recovery = Recovery(session, self.training_stream, self._window, self._live, self.checkpointer)
        self.deployer = Deployer(session, self._live, boundary, listener)
        self._evaluations = Evaluations(session, listener)

    @property
    def in_flight(self) -> int:
        """See `OpenRun`."""
        return self.pipeline.in_flight

    @property
    def waiting(self) -> dict[str, int]:
        """See `OpenRun`."""
        return self.pipeline.waiting

    @property
    def attached(self) -> bool:
        """See `OpenRun`."""
        return self.training_stream.attached

    async def run(self, on_result: Callable[[TrainingResult], object], *, resumed: bool) -> TrainingResult:
        """Run from the beginning, or from the stored checkpoints where `resumed`, and close the session at the end.

        on_result: called with the result, in a thread, before the session is closed. Raises IsthmusError when the run fails;
        a run whose session is stored can be resumed then.
        """
        started = time.monotonic()
        self._boundary.clear_request()
        if self.checkpointer.keeps:
            self._listener.checkpoint_shared()  # both sides have the state at the beginning
        self._shutdown.cancel_on_request(self._prepare_to_end)
        try:
            try:
                await self._train(resumed=resumed)
            except DivergedError as diverged:
                raise await self._end_diverged(diverged, started, on_result) from None
            result = await self._result(started)
            await asyncio.to_thread(on_result, result)
        except asyncio.CancelledError:
            await self._abandon()
            if self._shutdown.requested:
                raise self._stopped_error() from None
            raise
        except BaseException:
            await self._abandon()
            raise
        finally:
            self._shutdown.cancel_no_more()
        await self.checkpointer.stop()
        await self.session.workers.disk.run(self.session.stored.remove)
        await self._say_farewell()
        return result

    async def _train(self, *, resumed: bool) -> None:
        """Do all steps, over as many streams and from as many checkpoints as it takes; then download the cloud's weights."""
        outcome: Reattached | TrainerRestored | None = await self._recovery.attach_first(resumed=resumed)
        self.checkpointer.count_from(0)
        while True:
            try:
                while isinstance(outcome, TrainerRestored):
                    outcome = await self._restore(outcome)
                self._activity.begin(Activity.TRAINING)
                outcome = await self._do_steps()
                if outcome is None:
                    self._activity.begin(Activity.FINISHING)
                    await self.session.collect(self._live.in_force.cut)
                    on_nan = self._experiment.config.training.on_nan
                    check_weights(self._experiment.chain.module, on_nan, self._window.started)
                    return
            except SessionLostError as lost:  # a call found a trainer that has restarted
                outcome = await self._recovery.reattach(lost)

    async def _do_steps(self) -> TrainerRestored | None:
        """Do the steps that are left, in stretches that end where something is due. Returns None when all are done."""
        loader, steps, window = self._experiment.loader, self._experiment.steps, self._window
        source = loader.iterate(window.started, steps)
        async with Prefetcher(source, self.session.workers.load, self.pipeline.wake) as batches:
            while True:
                if self._evaluations.due(window.started):
                    with self._activity.during(Activity.EVALUATING):
                        await self._evaluations.evaluate(self._live.in_force, window.started)
                if window.started == steps:
                    return None
                if self._shutdown.requested:
                    await self._stop()
                if self._pause.requested:
                    with self._activity.during(Activity.PAUSED):
                        outcome = await self._pause.stay_paused(self._recovery, self._at_boundary, self._messages.take)
                else:
                    epoch = window.started // loader.steps_per_epoch
                    epoch_end = min((epoch + 1) * loader.steps_per_epoch, steps)
                    stop_step = self.checkpointer.next_stop_step(window.started, epoch_end)
                    outcome = await self.pipeline.run(self._recovery, batches, stop_step)
                    if outcome is None:
                        self._listener.drained()
                        await self._at_boundary()
                if outcome is not None:
                    return outcome

    async def _restore(self, to: TrainerRestored) -> TrainerRestored | None:
        """Go on from the checkpoint that the trainer has restored. Returns another one where ours is damaged."""
        outcome = await self._recovery.restore(to)
        if isinstance(outcome, TrainerRestored):
            return outcome
        self._evaluations.evaluated_step = outcome.facts.get("evaluated_step", 0)
        self._listener.rolled_back(outcome.step)
        return None

    async def _at_boundary(self) -> None:
        """Do what was waiting for a moment with nothing in flight: a move of the cut, a checkpoint, the trainer's stop."""
        step = self._window.started
        with self._activity.during(Activity.MIGRATING) if self.deployer.moving else nullcontext():
            if await self.deployer.move_if_requested(step):
                self.checkpointer.ask_here()  # so that going back never moves the cut back
        if self.checkpointer.due(step) and step < self._experiment.steps:
            await self._checkpoint()
        if self._messages.trainer_stops:
            self._messages.trainer_stops = False
            await self._end_with_checkpoint()  # and come back when the trainer does

    async def _checkpoint(self) -> None:
        started = time.monotonic()
        facts = {"evaluated_step": self._evaluations.evaluated_step}
        await self.checkpointer.take(self._window.started, self.training_stream, self._experiment.held, facts)
        self._listener.checkpoint_taken(time.monotonic() - started)

    async def _end_with_checkpoint(self) -> None:
        """Take a last checkpoint at this step, where both sides can write it, and end the stream."""
        step = self._window.started
        try:
            await self.checkpointer.wait_until_written(self.training_stream)
            self.checkpointer.ask_here()
            if self.checkpointer.due(step):
                await self._checkpoint()
                await self.checkpointer.wait_until_written(self.training_stream)
        except IsthmusError as failure:
            _log.warning("no last checkpoint", step=step, reason=str(failure))
        with suppress(IsthmusError):
            await self.training_stream.end()

    async def _stop(self) -> NoReturn:
        await self._end_with_checkpoint()
        raise self._stopped_error()

    def _stopped_error(self) -> StoppedError:
        stored = (
            f"`{self._shutdown.resume_command}` goes on"
            if self.session.resumable
            else "nothing is kept, so the next run is a new one"
        )
        return self._shutdown.error(f"at step {self._window.started} of {self._experiment.steps}; {stored}")

    def _prepare_to_end(self) -> float:
        """Have the run stop at the next boundary. Returns the seconds in which it has to end."""
        self._boundary.request()
        # With the trainer away nothing can be drained, and no checkpoint be taken on both sides.
        return 0.0 if self.session.retry.away else self._experiment.config.checkpoints.stop_seconds

    async def _end_diverged(
        self, diverged: DivergedError, started_seconds: float, on_result: Callable[[TrainingResult], object]
    ) -> DivergedError:
        """Collect the last good weights, where there are any, and hand them on. Returns the error that ends the run."""
        if not await self._collect_last_good():
            return with_outcome(diverged)
        step = self._window.started
        try:
            await asyncio.to_thread(on_result, await self._result(started_seconds, diverged.step))
        except StorageError as failure:
            return with_outcome(diverged, step, failure)
        return with_outcome(diverged, step)

    async def _collect_last_good(self) -> bool:
        """Fill the user's module from the newest checkpoint of both sides that is finite. Returns False where there is none.

        The weights in memory are of no use: they were updated after the loss that showed the divergence.
        """
        stored = self.session.stored
        self._activity.begin(Activity.FINISHING)
        try:
            while stored.shared is not None:
                outcome: TrainerRestored | None = await self._recovery.attach_to_restore()
                while outcome is not None:
                    outcome = await self._restore(outcome)
                await self.session.collect(self._live.in_force.cut)
                if first_not_finite(self._experiment.chain.module) is None:
                    return True
                await self.session.workers.disk.run(stored.remove_damaged, stored.shared)
        except IsthmusError as failure:
            _log.warning("no good weights are to be had", reason=str(failure))
        return False

    async def _result(self, started_seconds: float, diverged_at_step: int | None = None) -> TrainingResult:
        """Figures and module, with all blocks on the host."""
        chain = self._experiment.chain
        await self.session.workers.compute.run(chain.module.to, "cpu")
        seconds, cut = time.monotonic() - started_seconds, self._live.in_force.cut
        trainer = self._experiment.config.only_trainer.name
        owners = [AGENT if block.index < cut else trainer for block in chain.blocks]
        return TrainingResult(Summary.of(self._statistics, seconds, chain, owners, diverged_at_step), chain.module)

    async def _abandon(self) -> None:
        """Free what the trainer holds for a run that ends early, and what both sides store unless the run can be resumed."""
        self.training_stream.drop()
        await self.checkpointer.stop()
        await self.session.abandon()
        with suppress(IsthmusError):
            if self.session.resumable:
                self.session.stored.release()
            else:
                await self.session.workers.disk.run(self.session.stored.remove)

    async def _say_farewell(self) -> None:
        """Close the session after its results are stored: a failure now cannot harm them."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.training_stream.end()
                await self.session.close()
        except (IsthmusError, TimeoutError) as failure:
            self.training_stream.drop()
            _log.warning("the trainer was not told that the run is done", reason=str(failure) or "it did not answer")
