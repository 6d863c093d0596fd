"""What follows from a lost stream: attach again, and go on where both sides were, or go back to a checkpoint of both.

A link may be lost as often as it likes. A step that the trainer refuses is tried once more, because damage on the way may
have caused the refusal; a second refusal ends the run, because the trainer would refuse the step each time.
"""

from dataclasses import dataclass
from typing import Any

import structlog

from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.training_stream import TrainingStream
from edge_agent.training.window import Position, Window
from shared.checkpoint import CheckpointName
from shared.client.retry import Spacing
from shared.client.stream_call import Stream
from shared.errors import (
    FencedError,
    GoneError,
    IsthmusError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    StorageError,
    UnreachableError,
)
from shared.model.build import check_cut
from shared.training.held_state import put_back
from shared.wire.isthmus.v1.trainer_pb2 import Attached, Deployment

_log = structlog.get_logger(__name__)
REFUSALS, FAILURES = 2, 4
"""So many refusals without progress between them end the run, and so many streams that ended otherwise than by a lost link."""


@dataclass(frozen=True, slots=True)
class Reattached:
    """Both sides go on where they were, and each sends again what the other lacks."""


@dataclass(frozen=True, slots=True)
class TrainerRestored:
    """The stream is attached, and the trainer has restored a checkpoint that this side has, too, and restores next."""

    checkpoint: CheckpointName
    deployment: Deployment
    block_digests: tuple[int, ...]
    """The digest of each block of the model, as the trainer has it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """This side has restored the checkpoint that the trainer restored."""

    step: int
    facts: dict[str, Any]
    """What `Checkpointer.take` was given to remember."""


class Recovery:
    """The link of one run, however often it is lost. Implements `edge_agent.training.pipeline.StreamSource`."""

    def __init__(
        self,
        session: OpenSession,
        training_stream: TrainingStream,
        window: Window,
        live: LiveDeployment,
        checkpointer: Checkpointer,
    ) -> None:
        self._session = session
        self._training_stream = training_stream
        self._window = window
        self._live = live
        self._checkpointer = checkpointer
        self._attempts = _Attempts()
        self._is_whole = False
        """Whether the state in memory is the state of one step, so that training can go on from it."""

    @property
    def stream(self) -> Stream:
        """See `StreamSource`."""
        return self._training_stream.stream

    async def attach_first(self, *, resumed: bool) -> Reattached | TrainerRestored:
        """Attach the first stream of a run. resumed: this process has no state but the checkpoints."""
        self._is_whole = not resumed
        return await self._attach()

    async def attach_to_restore(self) -> TrainerRestored:
        """Attach, and have the trainer restore a checkpoint, because the state in memory must not be used."""
        self._is_whole = False
        outcome = await self._attach()
        assert isinstance(outcome, TrainerRestored), "a trainer that goes on from memory was refused"
        return outcome

    async def reattach(self, failure: IsthmusError) -> Reattached | TrainerRestored:
        """Attach again after `failure`; see `StreamSource`.

        Where the trainer has refused a step and the session is gone after that, raises the refusal, because its reason can be
        fixed. After any other failure, raises a GoneError with the failure as its cause.
        """
        self._training_stream.drop()
        if not _can_be_mended(failure) or self._session.retry.give_up_seconds == 0:
            raise failure
        while True:
            self._attempts.count(failure, self._position)
            _log.warning("stream lost; attaching again", reason=str(failure))
            await self._attempts.wait(self._position)
            try:
                return await self._attach()
            except ProtocolError as again:
                failure = again
            except GoneError as gone:
                if _is_refusal(failure):
                    raise failure from None
                raise gone from failure

    async def restore(self, to: TrainerRestored) -> Restored | TrainerRestored:
        """Restore the checkpoint that the trainer has restored.

        Where it is damaged here, returns the older one that the trainer has restored since.
        """
        session, name = self._session, to.checkpoint
        experiment, workers, stored = session.experiment, session.workers, session.stored
        self._is_whole = False
        # Nothing that was begun before the loss may still change the blocks.
        await workers.compute.run(lambda: None)
        assert stored.store is not None, "the trainer restores what it was offered"
        try:
            checkpoint = await workers.disk.run(stored.store.load, name)
            check_cut(to.deployment.cut, experiment.chain)
            await workers.compute.run(put_back, experiment.held, range(to.deployment.cut), checkpoint.data)
        except StorageError as failure:
            _log.warning("checkpoint damaged; an older one counts", checkpoint=str(name), reason=str(failure))
            await workers.disk.run(stored.remove_damaged, name)
            return await self.attach_to_restore()
        await session.upload_static(list(to.block_digests), to.deployment.cut, to.deployment.version)
        self._window.restart(name.step)
        self._live.restart(to.deployment)
        if session.step_log is not None:
            session.step_log.rolled_back(name.step)
        await workers.disk.run(stored.set_shared, name)
        self._checkpointer.count_from(name.step)
        self._is_whole = True
        _log.info("went back to a checkpoint", step=name.step, cut=to.deployment.cut)
        return Restored(name.step, checkpoint.facts)

    @property
    def _position(self) -> Position | None:
        """How far this side has come; None where the state in memory must not be used."""
        return self._window.position if self._is_whole else None

    async def _attach(self) -> Reattached | TrainerRestored:
        position = self._position
        attached: Attached = await self._session.retry.run(lambda: self._training_stream.attach(position))
        self._checkpointer.note_stream_lost()  # what the trainer had still to say on the one before
        if attached.HasField("restored"):
            self._is_whole = False
            name = CheckpointName(attached.restored.lineage, attached.restored.step)
            return TrainerRestored(name, attached.deployment, tuple(attached.block_digests))
        self._live.note_in_force(attached.deployment)
        self._window.resume(attached.next_step)
        return Reattached()


class _Attempts:
    """Counts the failures that may end a run, and waits longer with every loss at one position.

    Failures count until the run has got beyond all steps that were under way at the first one: after going back to a
    checkpoint it may take many steps to come to the step that fails.
    """

    def __init__(self) -> None:
        self._beyond: int | None = None
        """The step whose report shows that the run has got beyond the first failure; None while nothing has failed."""
        self._refusals = self._failures = 0
        self._spacing = Spacing()

    def count(self, failure: IsthmusError, position: Position | None) -> None:
        """Count a failure; a lost link is none. Raises `failure` where no attempt may follow.

        position: where the run stands; None with no state in memory.
        """
        if not isinstance(failure, ProtocolError) and not _is_refusal(failure):
            return
        if position is not None and self._beyond is not None and position.report_step >= self._beyond:
            self._beyond, self._refusals, self._failures = None, 0, 0
        if position is not None and self._beyond is None:
            self._beyond = position.forward_step
        self._failures += 1
        self._refusals += _is_refusal(failure)
        if self._refusals >= REFUSALS or self._failures >= FAILURES:
            raise failure

    async def wait(self, position: Position | None) -> None:
        """Wait before the next attempt. The first attempt at a position does not wait."""
        await self._spacing.wait(None if position is None else (position.gradient_step, position.report_step))


def _is_refusal(failure: IsthmusError) -> bool:
    """Whether the trainer has understood what came and refused it, as it would again."""
    return isinstance(failure, RefusedError) and not isinstance(failure, SessionLostError)


def _can_be_mended(failure: IsthmusError) -> bool:
    """Whether the session may go on after `failure`, on another stream."""
    passing = isinstance(failure, UnreachableError | ProtocolError | SessionLostError) or _is_refusal(failure)
    return passing and not isinstance(failure, FencedError | GoneError)
