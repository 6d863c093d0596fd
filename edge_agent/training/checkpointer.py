"""The checkpoints of a run: when one is due, how it is taken at every worker, and which one all of them have.

One is taken at a step boundary, with nothing in flight: every worker copies its part, and writes it while training goes on.
Where replicas are wanted, each trainer's part is then brought to the disk of another worker. It is shared once all of it is
written. Used on the event loop.
"""

import asyncio
import time
from typing import Any

import structlog

from edge_agent.config import EdgeCheckpointsConfig
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.replicas import replicate
from edge_agent.sessions.worker_calls import CheckpointPart, WorkerCalls
from edge_agent.training.events import CheckpointShared
from edge_agent.training.step_boundary import StepBoundary
from shared.checkpoint import CheckpointName
from shared.client.backoff import Backoff
from shared.client.retry import new_backoff
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, SessionLostError, StoppedError, StorageError, UnreachableError
from shared.events import Emit
from shared.placement import Placement

_log = structlog.get_logger(__name__)
Ordered = list["asyncio.Future[CheckpointName]"]


class Checkpointer:
    """The checkpoints of one run. Without a folder to keep them in, none is ever due."""

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
        """Whether one is to be taken at the next boundary, whatever the configuration says."""
        self._last_step = 0
        """The step from which on steps and seconds count."""
        self._timer: asyncio.TimerHandle | None = None
        self._failing: tuple[float, Backoff] | None = None
        """Since when trainers could not take their parts, by time.monotonic, and the waits since then."""
        self._writing: asyncio.Task[None] | None = None
        """Waits until all parts of the one that was taken last are written, or could not be."""
        self._ordered: Ordered = []
        """Those who wait for the next checkpoint."""
        self.shared_at: float | None = None
        """When the newest one became shared, by time.time; None where that was in another process, or never."""

    def count_from(self, step: int) -> None:
        """Count steps and seconds until the next one from this step on."""
        self._asked = False
        self._last_step = step
        self._failing = None
        self._ask_after(self._config.every_seconds)

    async def stop(self) -> None:
        """Take no more checkpoints, and wait until the one that is being written is written."""
        if self._timer is not None:
            self._timer.cancel()
        await self.wait_until_written()
        _fail(self._ordered, StoppedError("the run ended before a checkpoint was taken"))

    @property
    def keeps(self) -> bool:
        """Whether there is a folder to keep checkpoints in."""
        return self._session.stored.store is not None

    async def order(self) -> CheckpointName:
        """Have one taken at the next boundary, and wait until it is shared.

        Raises UnreachableError where a link is down or a worker cannot write its part, StorageError where the record cannot be
        written, and StoppedError where the run ends first.
        """
        ordered: asyncio.Future[CheckpointName] = asyncio.get_running_loop().create_future()
        self._ordered.append(ordered)
        self.ask()
        return await ordered

    def ask(self) -> None:
        """Have the run come to a boundary soon, and take one there, whatever the configuration says."""
        if self.keeps:
            self._asked = True
            self._boundary.request()

    def ask_here(self) -> None:
        """Take one at this boundary, at which the run stands already."""
        self._asked = self.keeps

    def next_stop_step(self, step: int, stop_step: int) -> int:
        """The step at which a stretch from `step` to `stop_step` has to end for a checkpoint.

        One that was asked for and could not be taken here is taken after the next step.
        """
        if not self.keeps:
            return stop_step
        if self._asked and self._writing is None:
            return min(stop_step, step + 1)
        every = self._config.every_steps
        return stop_step if every is None else min(stop_step, (step // every + 1) * every)

    def due(self, step: int) -> bool:
        """Whether one is to be taken at this boundary."""
        every = self._config.every_steps
        due = self._asked or (every is not None and step % every == 0)
        return due and self.keeps and (step > self._last_step or bool(self._ordered))

    async def take(self, step: int, facts: dict[str, Any]) -> None:
        """Have every worker copy its part; all are written while training goes on.

        facts: what this device remembers with its part. Where the last checkpoint is still being written, one stays due. Where
        a trainer cannot take its part, one is due again soon, and less often the longer that lasts: with all blocks here no
        step waits for a trainer that is away. Raises SessionLostError where a trainer has nothing in memory to copy.
        """
        session, name = self._session, CheckpointName(self._session.state.lineage, step)
        self._asked = True
        if self._writing is not None:
            return
        if session.stored.shared == name:
            self.count_from(step)
            _deliver(self._ordered, name)
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
            if not isinstance(failure, IsthmusError) or isinstance(failure, SessionLostError):
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
        """Wait until all parts of the one that was taken last are written, or could not be."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(
        self, name: CheckpointName, placement: Placement, parts: list[CheckpointPart], ordered: Ordered
    ) -> None:
        session, is_replicated = self._session, False
        try:
            await gathered(*(part.written() for part in parts))
            if self._config.replicas:
                is_replicated = await replicate(session, self._device, name, placement)
            await session.threads.disk.run(session.stored.set_shared, name)
            _log.info("checkpoint at every worker", step=name.step)
            self.shared_at = time.time()
            self._emit(CheckpointShared(is_replicated))
            _deliver(ordered, name)
        except IsthmusError as failure:
            _log.warning("checkpoint not written", checkpoint=str(name), reason=str(failure))
            kind = StorageError if isinstance(failure, StorageError) else UnreachableError
            _fail(ordered, kind(f"the checkpoint of step {name.step} was not written everywhere: {failure}"))
        finally:  # a defect is reported by the loop; this checkpoint must not keep the next ones from being taken
            self._writing = None
            if self._asked or self._ordered:
                self._boundary.request()


def _deliver(ordered: Ordered, name: CheckpointName) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():  # who waited may have gone
            waiting.set_result(name)


def _fail(ordered: Ordered, failure: IsthmusError) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():
            waiting.set_exception(failure)
