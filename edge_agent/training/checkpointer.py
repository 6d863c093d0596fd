"""The checkpoints of a run: their times, their taking at every worker, and the newest one that all workers have.

One is taken at a step boundary, with nothing in flight. Every worker copies its part, and writes it during training.
With replicas, another worker then keeps a copy of each trainer's part. A checkpoint is shared once all of it is
written. Used on the event loop.
"""

import asyncio
import time
from typing import Any

import structlog

from edge_agent.config import EdgeCheckpointsConfig
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.replicas import Replicated, replicate
from edge_agent.sessions.worker_calls import CheckpointPart, WorkerCalls
from edge_agent.training.events import CheckpointShared
from edge_agent.training.step_boundary import StepBoundary
from shared.checkpoint import CheckpointName
from shared.client.backoff import Backoff
from shared.client.retry import new_backoff
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, ModelError, SessionLostError, StoppedError, StorageError, UnreachableError
from shared.events import Emit
from shared.placement import Placement

_log = structlog.get_logger(__name__)
Ordered = list["asyncio.Future[CheckpointName]"]


class Checkpointer:
    """The checkpoints of one run. Without a folder for them, none is ever due."""

    def __init__(
        self,
        config: EdgeCheckpointsConfig,
        session: OpenSession,
        device: WorkerCalls,
        boundary: StepBoundary,
        emit: Emit,
    ) -> None:
        """device: this device's own part in the session."""
        self._config = config
        self._session = session
        self._device = device
        self._boundary = boundary
        self._emit = emit
        self._asked = False
        """True if the next boundary takes one, whatever the configuration says."""
        self._last_step = 0
        """Step from which steps and seconds count."""
        self._timer: asyncio.TimerHandle | None = None
        self._failing: tuple[float, Backoff] | None = None
        """Start of the trainers' failures to take their parts, by time.monotonic, and the waits since then."""
        self._writing: asyncio.Task[None] | None = None
        """Task that waits until all parts of the latest one are written, or have failed."""
        self._ordered: Ordered = []
        """Callers that wait for the next checkpoint."""
        self.shared_at: float | None = None
        """Time at which the newest one became shared, by time.time. None if that was in another process, or never."""
        self.lacks_replicas = ""
        """A sentence that says why the newest shared one lacks replicas; empty if it has those that are configured."""

    def count_from(self, step: int) -> None:
        """Count steps and seconds until the next checkpoint from this step on."""
        self._asked = bool(self._ordered)  # what was ordered while the parts of another one were copied
        self._last_step = step
        self._failing = None
        self._ask_after(self._config.every_seconds)

    async def stop(self) -> None:
        """Take no more checkpoints, and wait until the current one is written."""
        if self._timer is not None:
            self._timer.cancel()
        await self.wait_until_written()
        _fail(self._ordered, StoppedError("the run ended before a checkpoint was taken"))

    @property
    def keeps(self) -> bool:
        """Tell whether there is a folder for checkpoints."""
        return self._session.stored.store is not None

    async def order(self) -> CheckpointName:
        """Have one taken at the next boundary, and wait until it is shared.

        Raises UnreachableError if a link is down or a worker cannot write its part, StorageError if the record cannot
        be written, and StoppedError if the run ends first.
        """
        ordered: asyncio.Future[CheckpointName] = asyncio.get_running_loop().create_future()
        self._ordered.append(ordered)
        self.ask()
        return await ordered

    def ask(self) -> None:
        """Request a boundary soon, and a checkpoint there, whatever the configuration says."""
        if self.keeps:
            self._asked = True
            self._boundary.request()

    def ask_here(self) -> None:
        """Request a checkpoint at this boundary, which the run has reached."""
        self._asked = self.keeps

    def next_stop_step(self, step: int, stop_step: int) -> int:
        """Return the step at or after which a stretch from `step` to `stop_step` must end for a checkpoint.

        A requested one that could not be taken here is taken after the next step.
        """
        if not self.keeps:
            return stop_step
        if self._asked and self._writing is None:
            return min(stop_step, step + 1)
        every = self._config.every_steps
        return stop_step if every is None else min(stop_step, (step // every + 1) * every)

    def due(self, step: int) -> bool:
        """Tell whether this boundary takes one."""
        recipe = self._session.experiment.recipe
        due = self._asked or recipe.is_due(step, self._config.every_steps or 0)
        return due and self.keeps and (step > self._last_step or bool(self._ordered))

    async def take(self, step: int, facts: dict[str, Any]) -> None:
        """Have every worker copy its part. All parts are written during training.

        facts: data that this device stores with its part. While the last checkpoint is being written, another stays
        due. If a trainer cannot take its part, one is due again soon, and less often the longer the failure lasts: with
        all blocks here, no step waits for an absent trainer. Raises SessionLostError if a trainer has nothing in memory
        to copy, and ModelError if training has changed what it must not.
        """
        session, name = self._session, CheckpointName(self._session.state.lineage, step)
        self._asked = True
        if self._writing is not None:
            return
        if session.stored.shared == name:
            _deliver(self._ordered, name)
            self.count_from(step)
            return
        ordered, self._ordered = self._ordered, []
        workers: list[WorkerCalls] = [*session.members.holders(session.placement), self._device]
        parts = [worker.checkpoint(name, facts) for worker in workers]
        try:
            await gathered(*(part.copied() for part in parts))
        except BaseException as failure:
            await gathered(*(part.give_up() for part in parts))
            self._ask_again_later()
            _fail(ordered, UnreachableError(f"no checkpoint was taken at step {step}: {failure}"))
            if not isinstance(failure, IsthmusError) or isinstance(failure, SessionLostError | ModelError):
                raise
            _log.warning("no checkpoint was taken", step=step, reason=str(failure))
            return
        self._writing = asyncio.create_task(self._write(name, session.placement, parts, ordered))
        self.count_from(step)

    def _ask_again_later(self) -> None:
        since, backoff = self._failing = self._failing or (time.monotonic(), new_backoff())
        self._asked = False
        self._ask_after(backoff.next_seconds(time.monotonic() - since))

    def _ask_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.ask)

    async def wait_until_written(self) -> None:
        """Wait until all parts of the latest one are written, or have failed."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(
        self, name: CheckpointName, placement: Placement, parts: list[CheckpointPart], ordered: Ordered
    ) -> None:
        session, replicated = self._session, Replicated(is_whole=False)
        try:
            await gathered(*(part.written() for part in parts))
            if self._config.replicas == 1:
                replicated = await replicate(session, self._device, name, placement)
            await session.threads.disk.run(session.stored.set_shared, name)
            if replicated.lacking:
                _log.warning("the checkpoint lacks replicas", step=name.step, reason=replicated.lacking)
            self.lacks_replicas = replicated.lacking
            _log.info("checkpoint at every worker", step=name.step)
            self.shared_at = time.time()
            self._emit(CheckpointShared(replicated.is_whole, placement))
            _deliver(ordered, name)
        except IsthmusError as failure:
            _log.warning("checkpoint not written", checkpoint=str(name), reason=str(failure))
            kind = StorageError if isinstance(failure, StorageError) else UnreachableError
            _fail(ordered, kind(f"the checkpoint of step {name.step} was not written everywhere: {failure}"))
        finally:  # The loop reports a defect. This checkpoint must not prevent the next ones.
            self._writing = None
            if self._asked or self._ordered:
                self._boundary.request()


def _deliver(ordered: Ordered, name: CheckpointName) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():  # the caller may have gone
            waiting.set_result(name)


def _fail(ordered: Ordered, failure: IsthmusError) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():
            waiting.set_exception(failure)
