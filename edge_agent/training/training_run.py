"""A training run under any placement, from its first join to its end.

It ends with the trained weights of all workers in the user's module, or with an error that could not be mended.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from edge_agent.sessions.finished import settings_of_result
from edge_agent.sessions.messages import FAREWELL_SECONDS
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.best_weights import best_of
from edge_agent.training.divergence import check_weights, first_not_finite, with_outcome
from edge_agent.training.evaluation import Evaluation, evaluated_whole
from edge_agent.training.events import CheckpointShared
from edge_agent.training.improvement import best_step
from edge_agent.training.result import Summary, TrainingResult
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_boundary import Pause
from edge_agent.training.training_loop import TrainingLoop
from shared.errors import DivergedError, IsthmusError, StoppedError, StorageError
from shared.events import Emit
from shared.placement import Cargo
from shared.registry import codec_spec
from shared.training.averages import averaged_state

_log = structlog.get_logger(__name__)


class TrainingRun:
    """The run of an experiment's steps, in one open session. Made and used on the event loop."""

    def __init__(
        self,
        session: OpenSession,
        training: TrainingLoop,
        pause: Pause,
        emit: Emit,
        statistics: Statistics,
    ) -> None:
        """training: in this session. The others are as for `TrainingLoop.made`; statistics are for the summary, too."""
        self.session = session
        self.training = training
        self.checkpointer = self.training.checkpointer
        self.deployer = self.training.deployer
        self.step_runner = self.training.step_runner
        self._boundary = pause.boundary
        self._shutdown = pause.shutdown
        self._emit = emit
        self._statistics = statistics

    async def run(self, write_result: Callable[[TrainingResult], object], *, resumed: bool) -> TrainingResult:
        """Run from the beginning, or from the stored checkpoints if `resumed`, and close the session at the end.

        write_result: called with the result, in a thread, before the session is closed. Raises IsthmusError when the
        run fails; a run whose session is stored can then be resumed. Its files are still in use then (`let_go`).
        """
        session = self.session
        self._statistics.begin()
        self._boundary.clear_request()
        if self.training.checkpointer.keeps:
            # At the beginning, all workers have the state.
            self._emit(CheckpointShared(is_replicated=False, placement=session.placement))
        self._shutdown.cancel_on_request(self._prepare_to_end)
        try:
            try:
                await self.training.train(resumed=resumed)
                if self._shutdown.requested and self.training.step < session.experiment.steps:
                    raise self._stopped_error()
                on_nan = session.experiment.config.training.on_nan
                check_weights(session.experiment.chain.module, on_nan, self.training.step)
            except DivergedError as diverged:
                raise await self._end_diverged(diverged, write_result) from None
            result = await self._result()
            self._shutdown.cancel_no_more()  # The remaining work is worth more than its time.
            await self._keep(result)
            await asyncio.to_thread(write_result, result)
        except asyncio.CancelledError:
            self._shutdown.cancel_no_more()
            await self._abandon()
            if self._shutdown.requested:
                raise self._stopped_error() from None
            raise
        except BaseException:
            self._shutdown.cancel_no_more()
            await self._abandon()
            raise
        finally:
            self._shutdown.cancel_no_more()
        await self.training.close()
        goes_on = session.experiment.config.checkpoints.keep_finished and session.stored.shared is not None
        await session.threads.disk.run(session.stored.finish if goes_on else session.stored.remove)
        await session.threads.disk.run(session.stored.remove_best)
        await self._say_farewell(resumable=goes_on)
        return result

    def _stopped_error(self) -> StoppedError:
        return self._shutdown.error(f"at step {self.training.step} of {self.session.experiment.steps}")

    def _prepare_to_end(self) -> float:
        """Have the run stop at the next boundary. Returns the seconds in which it has to end."""
        self._boundary.request()
        # With an absent trainer, the run can neither drain nor take a checkpoint everywhere.
        return 0.0 if self.session.retry.reasons else self.session.experiment.config.checkpoints.stop_seconds

    async def _end_diverged(
        self, diverged: DivergedError, write_result: Callable[[TrainingResult], object]
    ) -> DivergedError:
        """Collect the last good weights, if there are any, and hand them on. Returns the error that ends the run."""
        if not await self._collect_last_good():
            return with_outcome(diverged)
        step, result = self.training.step, await self._result(diverged.step)
        self._shutdown.cancel_no_more()
        try:
            await asyncio.to_thread(write_result, result)
        except StorageError as failure:
            return with_outcome(diverged, step, failure)
        return with_outcome(diverged, step)

    async def _collect_last_good(self) -> bool:
        """Fill the user's module from the newest checkpoint of all that is finite. Returns False if there is none.

        The weights in memory are useless: they were updated after the loss that showed the divergence.
        """
        session, stored = self.session, self.session.stored
        try:
            while stored.shared is not None:
                await self.training.go_back()
                if first_not_finite(session.experiment.chain.module) is None:
                    return True
                await session.threads.disk.run(stored.remove_damaged, stored.shared)
        except IsthmusError as failure:
            _log.warning("no good weights are to be had", reason=str(failure))
        return False

    async def _result(self, diverged_at_step: int | None = None) -> TrainingResult:
        """Return figures and module, with all blocks on the host."""
        chain = self.session.experiment.chain
        await self.session.threads.compute.run(chain.module.to, "cpu")
        placement = self.session.placement
        settings = settings_of_result(self.session.experiment.config)
        summary = Summary.of(self._statistics, chain, placement, diverged_at_step, settings)
        if diverged_at_step is None and (saved := await self._evaluated_as_saved()) is not None:
            summary = replace(
                summary,
                saved_accuracy=saved.accuracy,
                saved_test_loss=saved.loss,
                saved_metrics=dict(saved.metrics),
            )
        figure, rows = self.session.experiment.config.training.keep_best, summary.history
        best = await self.session.threads.disk.run(
            best_of, rows, figure, self.session.stored, chain.module, summary.steps
        )
        step = best_step(rows, figure) if figure is not None and best is not None else None
        average = None
        if self.session.experiment.recipe.ema is not None:
            average = averaged_state(chain.module, self.training.averages)
        return TrainingResult(replace(summary, best_step=step), chain.module, best, average)

    async def _evaluated_as_saved(self) -> Evaluation | None:
        """Evaluate the module on this device, where evaluations have had a codec between its blocks that loses something.

        Returns None elsewhere, and where this device cannot: the result does not wait for a figure.
        """
        experiment, placement = self.session.experiment, self.session.placement
        features = (name for route, name in placement.codecs.items() if route.cargo is Cargo.FEATURE)
        if experiment.evaluation is None or not any(codec_spec(name).lossy for name in features):
            return None
        chain, recipe, test = experiment.chain, experiment.recipe, experiment.evaluation
        try:
            return await self.session.threads.compute.run(evaluated_whole, chain, recipe, test)
        except (IsthmusError, MemoryError) as failure:
            _log.warning("the model was not evaluated as it is saved", reason=str(failure))
            return None

    async def _keep(self, result: TrainingResult) -> None:
        """Keep the trained model until its results are written, so that a full disk loses nothing."""
        session = self.session
        try:
            model = await session.threads.compute.run(lambda: result.model)
            await session.threads.disk.run(session.stored.keep_result, session.experiment.steps, result.facts, model)
        except StorageError as failure:
            _log.warning("the trained model is not kept beside its results", reason=str(failure))

    async def _abandon(self) -> None:
        """Free the trainers' memory for a run that ends early, and their files unless the run can be resumed."""
        await self.training.close()
        await self.session.abandon()

    async def let_go(self) -> None:
        """Let other processes resume the run, or remove its files where that is not possible."""
        stored = self.session.stored
        with suppress(StorageError):
            await self.session.threads.disk.run(stored.release if stored.resumable else stored.remove)

    async def _say_farewell(self, *, resumable: bool) -> None:
        """Close the session after its results are stored: a failure now cannot harm them. resumable: for a longer run."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.session.close(resumable=resumable)
        except (IsthmusError, TimeoutError) as failure:
            _log.warning("the trainers were not told that the run is done", reason=str(failure) or "one did not answer")
