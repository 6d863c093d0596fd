"""When a checkpoint is due, taking the edge's half and asking for the trainer's, and which both sides have.

Called on the event loop at step boundaries, with nothing in flight.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from edge_agent.config import EdgeCheckpointsConfig
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.listener import RunListener
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.training_stream import TrainingStream
from shared.checkpoint import CheckpointName
from shared.errors import IsthmusError, StoppedError, StorageError, UnreachableError
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import copy_state, to_bytes
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


class Checkpointer:
    """The checkpoints of one run. Without a folder to keep them in none is ever due."""

    def __init__(
        self,
        config: EdgeCheckpointsConfig,
        stored: StoredSession,
        workers: Workers,
        boundary: StepBoundary,
        listener: RunListener,
    ) -> None:
        self._config = config
        self._stored = stored
        self._workers = workers
        self._boundary = boundary
        self._listener = listener
        self._asked = False
        self._last_step = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pending: CheckpointName | None = None
        self._ours: bool | None = None
        self._theirs: bool | None = None
        self._saving: asyncio.Task[None] | None = None
        self._ordered: list[asyncio.Future[CheckpointName]] = []
        self._taken_for: list[asyncio.Future[CheckpointName]] = []
        self.shared_at: float | None = None
        """When both sides had their newest one, by time.time; None where that was in another process, or never."""

    def begin(self, step: int) -> None:
        """Count steps and seconds from here."""
        self._asked = False
        self._last_step = step
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._config.every_seconds, self.ask)

    async def stop(self) -> None:
        """No more; what is being written is written."""
        if self._timer is not None:
            self._timer.cancel()
        await self._saved()
        ended = StoppedError("the run ended before a checkpoint was taken")
        _fail(self._ordered, ended)
        _fail(self._taken_for, ended)

    @property
    def keeps(self) -> bool:
        """Whether there is anywhere to keep a checkpoint."""
        return self._stored.store is not None

    async def order(self) -> CheckpointName:
        """Have one taken at the next boundary, on both sides, and wait for it.

        Raises UnreachableError when the link was down or a side could not write it, StoppedError when the run ended first.
        """
        ordered: asyncio.Future[CheckpointName] = asyncio.get_running_loop().create_future()
        self._ordered.append(ordered)
        self.ask()
        return await ordered

    def ask(self) -> None:
        """Take one at the next boundary, whatever the configuration says."""
        if self._stored.store is not None:
            self._asked = True
            self._boundary.request()

    def ask_here(self) -> None:
        """Take one at this boundary."""
        self._asked = self._stored.store is not None

    def next_stop_step(self, step: int, stop_step: int) -> int:
        """Where a run from `step` to `stop_step` has to end for a checkpoint.

        One that was asked for and could not be taken here is taken after the next step.
        """
        if self._stored.store is None:
            return stop_step
        if self._asked and self._pending is None:
            return min(stop_step, step + 1)
        every = self._config.every_steps
        return stop_step if every is None else min(stop_step, (step // every + 1) * every)

    def due(self, step: int) -> bool:
        """Whether one is to be taken at this boundary."""
        every = self._config.every_steps
        due = self._asked or (every is not None and step % every == 0)
        return due and self._stored.store is not None and (step > self._last_step or bool(self._ordered))

    async def take(self, step: int, training_stream: TrainingStream, held: HeldBlocks, facts: dict[str, Any]) -> None:
        """Copy the edge's state and ask for the trainer's half; both are written while training goes on.

        Where the link is down or the last one is still being written, it stays due.
        """
        store, name = self._stored.store, CheckpointName(training_stream.lineage, step)
        if store is None:
            return
        self._asked = True
        if self._pending is not None:
            return
        if self._stored.shared == name:
            self.begin(step)
            _deliver(self._ordered, name)
            return
        self._taken_for, self._ordered = self._ordered, []
        state = await self._workers.compute.run(copy_state, held)
        request = pb.TakeCheckpoint(name=pb.CheckpointName(lineage=name.lineage, step=step))
        if (shared := self._stored.shared) is not None:
            request.shared.CopyFrom(pb.CheckpointName(lineage=shared.lineage, step=shared.step))
        try:
            await training_stream.stream.write(pb.TrainRequest(checkpoint=request))
        except IsthmusError as failure:
            _log.warning("no checkpoint: the link is down", step=step, reason=str(failure))
            _fail(self._taken_for, UnreachableError(f"no checkpoint was taken at step {step}: {failure}"))
            return
        self._pending, self._ours, self._theirs = name, None, None

        def write() -> None:
            store.save(name, facts, to_bytes(state))
            store.prune([] if shared is None else [shared])

        self._saving = asyncio.create_task(self._save(write))
        self.begin(step)

    def note_checkpointed(self, note: pb.Checkpointed) -> None:
        """The trainer says how its half went."""
        if self._pending == (note.name.lineage, note.name.step):
            self._theirs = note.written
            self._conclude()

    def note_stream_lost(self) -> None:
        """The stream is lost, and with it what the trainer would have said of its half."""
        if self._pending is not None and self._theirs is None:
            self._theirs = False
            self._conclude()

    async def wait_until_written(self, training_stream: TrainingStream) -> None:
        """Wait until both sides have written what was taken last. Takes the trainer's messages; it has no other to send.

        Raises IsthmusError when the link is lost.
        """
        while self._pending is not None and self._theirs is None:
            event = await training_stream.stream.receive()
            if event is None:
                self.note_stream_lost()
            elif event[0].HasField("checkpointed"):
                self.note_checkpointed(event[0].checkpointed)
        await self._saved()

    async def _saved(self) -> None:
        while self._saving is not None and not self._saving.done():
            await asyncio.wait({self._saving})

    async def _save(self, write: Callable[[], None]) -> None:
        written = False
        try:
            await self._workers.disk.run(write)
            written = True
        except StorageError as failure:
            _log.warning("checkpoint not written", checkpoint=str(self._pending), reason=str(failure))
        finally:  # a defect is reported by the loop; this checkpoint must not keep the next ones from being taken
            self._ours = written
            self._conclude()

    def _conclude(self) -> None:
        if self._pending is None or self._ours is None or self._theirs is None:
            return
        name, self._pending = self._pending, None
        ordered, self._taken_for = self._taken_for, []
        if self._asked or self._ordered:
            self._boundary.request()
        if self._ours and self._theirs:
            _log.info("checkpoint on both sides", step=name.step)
            self._saving = asyncio.create_task(self._share(name, ordered))
        else:
            side = "this device" if not self._ours else "the trainer"
            reason = f"the checkpoint of step {name.step} was not written on {side}; its log says why"
            _fail(ordered, UnreachableError(reason))

    async def _share(self, name: CheckpointName, ordered: list[asyncio.Future[CheckpointName]]) -> None:
        try:
            await self._workers.disk.run(self._stored.set_shared, name)
        except StorageError as failure:
            _log.warning("session's record not written", reason=str(failure))
            _fail(ordered, failure)
            return
        self.shared_at = time.time()
        self._listener.checkpoint_shared()
        _deliver(ordered, name)


def _deliver(ordered: "list[asyncio.Future[CheckpointName]]", name: CheckpointName) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():  # who waited may have gone
            waiting.set_result(name)


def _fail(ordered: "list[asyncio.Future[CheckpointName]]", failure: IsthmusError) -> None:
    while ordered:
        if not (waiting := ordered.pop()).done():
            waiting.set_exception(failure)
