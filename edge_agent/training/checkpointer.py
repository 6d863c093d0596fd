"""The checkpoints of a run: when one is due, how it is taken on both sides, and which one both sides have.

One is taken at a step boundary, with nothing in flight: the edge copies its half and asks the trainer for the other. It is
shared once both halves are written. Used on the event loop.
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
    """The checkpoints of one run. Without a folder to keep them in, none is ever due."""

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
        """Whether one is to be taken at the next boundary, whatever the configuration says."""
        self._last_step = 0
        """The step from which on steps and seconds count."""
        self._timer: asyncio.TimerHandle | None = None
        self._pending: CheckpointName | None = None
        """The one that was taken and is not yet written, or refused, on both sides."""
        self._ours: bool | None = None
        """Whether the edge's half of it is written; None while that is not known."""
        self._theirs: bool | None = None
        """Whether the trainer's half of it is written; None while that is not known."""
        self._saving: asyncio.Task[None] | None = None
        """Writes the edge's half, or that the checkpoint is shared."""
        self._ordered: list[asyncio.Future[CheckpointName]] = []
        """Those who wait for the next checkpoint."""
        self._taken_for: list[asyncio.Future[CheckpointName]] = []
        """Those who wait for the one that is pending."""
        self.shared_at: float | None = None
        """When the newest one became shared, by time.time; None where that was in another process, or never."""

    def count_from(self, step: int) -> None:
        """Count steps and seconds until the next one from this step on."""
        self._asked = False
        self._last_step = step
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._config.every_seconds, self.ask)

    async def stop(self) -> None:
        """Take no more checkpoints, and wait until the one that is being written is written."""
        if self._timer is not None:
            self._timer.cancel()
        await self._wait_until_saved()
        ended = StoppedError("the run ended before a checkpoint was taken")
        _fail(self._ordered, ended)
        _fail(self._taken_for, ended)

    @property
    def keeps(self) -> bool:
        """Whether there is a folder to keep checkpoints in."""
        return self._stored.store is not None

    async def order(self) -> CheckpointName:
        """Have one taken at the next boundary, and wait until it is shared.

        Raises UnreachableError where the link is down or a side cannot write its half, StorageError where the record cannot be
        written, and StoppedError where the run ends first.
        """
        ordered: asyncio.Future[CheckpointName] = asyncio.get_running_loop().create_future()
        self._ordered.append(ordered)
        self.ask()
        return await ordered

    def ask(self) -> None:
        """Have the run come to a boundary soon, and take one there, whatever the configuration says."""
        if self._stored.store is not None:
            self._asked = True
            self._boundary.request()

    def ask_here(self) -> None:
        """Take one at this boundary, at which the run stands already."""
        self._asked = self._stored.store is not None

    def next_stop_step(self, step: int, stop_step: int) -> int:
        """The step at which a stretch from `step` to `stop_step` has to end for a checkpoint.

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
        """Copy the edge's half and ask for the trainer's; both are written while training goes on.

        facts: what the edge remembers with its half. Where the link is down or the last checkpoint is still being written, one
        stays due.
        """
        store, name = self._stored.store, CheckpointName(training_stream.lineage, step)
        if store is None:
            return
        self._asked = True
        if self._pending is not None:
            return
        if self._stored.shared == name:
            self.count_from(step)
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
        self.count_from(step)

    def note_checkpointed(self, note: pb.Checkpointed) -> None:
        """The trainer says whether its half is written."""
        if self._pending == (note.name.lineage, note.name.step):
            self._theirs = note.written
            self._conclude()

    def note_stream_lost(self) -> None:
        """The stream is lost, and the trainer cannot say any more what became of its half: it counts as not written."""
        if self._pending is not None and self._theirs is None:
            self._theirs = False
            self._conclude()

    async def wait_until_written(self, training_stream: TrainingStream) -> None:
        """Wait until both sides have written their halves of the pending one, or could not.

        Reads the trainer's messages, which can be of this only. Raises IsthmusError where the link is lost.
        """
        while self._pending is not None and self._theirs is None:
            event = await training_stream.stream.receive()
            if event is None:
                self.note_stream_lost()
            elif event[0].HasField("checkpointed"):
                self.note_checkpointed(event[0].checkpointed)
        await self._wait_until_saved()

    async def _wait_until_saved(self) -> None:
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
        """Once both halves are written or refused: nothing is pending any more, and who waits for it hears what came of it."""
        if self._pending is None or self._ours is None or self._theirs is None:
            return
        name, self._pending = self._pending, None
        ordered, self._taken_for = self._taken_for, []
        if self._asked or self._ordered:
            self._boundary.request()
        if self._ours and self._theirs:
            _log.info("checkpoint on both sides", step=name.step)
            self._saving = asyncio.create_task(self._record_shared(name, ordered))
        else:
            side = "this device" if not self._ours else "the trainer"
            reason = f"the checkpoint of step {name.step} was not written on {side}; its log says why"
            _fail(ordered, UnreachableError(reason))

    async def _record_shared(self, name: CheckpointName, ordered: list[asyncio.Future[CheckpointName]]) -> None:
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
