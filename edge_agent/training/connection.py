"""The training stream of a session, attached again after each loss (docs/recovery.md).

Knows what the edge has by its steps and names only; who holds the state is told where to go on.
"""

from collections.abc import Callable

import structlog

from edge_agent.training.ends import Position
from edge_agent.training.fruitless import Fruitless, is_refusal
from edge_agent.training.in_flight import InFlight
from edge_agent.training.session_store import StoredSession
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.client.training_call import Stream, TrainingCall
from shared.concurrency.threads import Worker
from shared.errors import (
    BusyError,
    FencedError,
    GoneError,
    IsthmusError,
    ProtocolError,
    SessionLostError,
    UnreachableError,
)
from shared.transport.stream.framing import WireTensor
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


class WentBack(Exception):
    """No error: raised out of a run of the pipeline when the trainer has gone back to a checkpoint, and the edge must too.

    The stream is attached.
    """

    def __init__(self, attached: pb.Attached) -> None:
        super().__init__(f"both sides go back to step {attached.next_step}")
        self.attached = attached


class Connection:
    """Implements `edge_agent.training.pipeline.Link`."""

    def __init__(
        self,
        client: TrainerClient,
        stored: StoredSession,
        disk: Worker,
        retry: Retry,
        in_flight: InFlight,
        on_delivered: Callable[[WireTensor, float, int], None],
        on_attached: Callable[[Stream], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._stored = stored
        self._disk = disk
        self._retry = retry
        self._in_flight = in_flight
        self._on_delivered = on_delivered
        self._on_attached = on_attached
        self._on_lost = on_lost
        self.lineage = 0
        self._call: TrainingCall | None = None
        self._fruitless = Fruitless()
        self._unused_epoch: int | None = None
        """Counted up and then not taken by the trainer, which was busy; the next attempt has it."""

    @property
    def stream(self) -> Stream:
        """See `Link`."""
        if self._call is None:
            raise UnreachableError(f"no training stream is attached to the trainer at {self._client.address}")
        return self._call.stream

    @property
    def attached(self) -> bool:
        """Whether a training stream is attached."""
        return self._call is not None

    @property
    def fence(self) -> pb.Fence:
        """What proves that this agent has the session."""
        return pb.Fence(session_epoch=self._stored.record.session_epoch)

    async def attach(self, position: Position | None) -> pb.Attached:
        """Attach once. position: None with no state in memory.

        Nothing is written while the trainer does not answer. Raises UnreachableError, BusyError, FencedError, GoneError, or
        ProtocolError.
        """
        self.drop()
        await self._client.reach()
        checkpoints = _named(await self._disk.run(self._stored.checkpoints), self._stored.shared)
        if self._unused_epoch is None:
            epoch = await self._disk.run(self._stored.next_epoch)
        else:
            epoch, self._unused_epoch = self._unused_epoch, None
        attach = pb.Attach(
            session_id=self._stored.record.session_id,
            session_epoch=epoch,
            protocol_version=PROTOCOL_VERSION,
            checkpoints=[pb.CheckpointName(lineage=name.lineage, step=name.step) for name in checkpoints],
        )
        if position is not None:
            attach.position.CopyFrom(
                pb.Position(lineage=self.lineage, gradient_step=position.gradient, report_step=position.report)
            )
        try:
            call, attached = await self._client.attach(
                attach, self._in_flight.accept, self._in_flight.oldest, self._on_delivered
            )
        except BusyError:
            self._unused_epoch = epoch
            raise
        except SessionLostError as lost:
            raise GoneError(str(lost)) from lost
        try:
            _check_answer(attached, attach, position)
        except ProtocolError:
            call.cancel()
            raise
        self._call = call
        if attached.HasField("restored"):
            self.lineage = epoch
        self._on_attached(self._call.stream)
        return attached

    async def resume(self, failure: Exception, position: Position | None) -> pb.Attached:
        """See `Link`. position: None with no state in memory. Raises WentBack when the trainer has gone back.

        What was refused before is raised where the session is gone by it: that is the reason which can be mended. Any other
        failure after which the session is gone is the cause of the GoneError.
        """
        self.drop()
        if not isinstance(failure, IsthmusError) or not _may_pass(failure) or self._retry.give_up_seconds == 0:
            raise failure
        while True:
            self._fruitless.count(failure, position)
            _log.warning("stream lost; attaching again", reason=str(failure))
            await self._fruitless.wait(position)
            try:
                attached = await self._retry.run(lambda: self.attach(position))
            except ProtocolError as again:
                failure = again
                continue
            except GoneError as gone:
                if is_refusal(failure):
                    raise failure from None
                raise gone from failure
            if attached.HasField("restored"):
                raise WentBack(attached)
            return attached

    async def end(self) -> None:
        """Tell the trainer that no more comes, and wait until it has ended the stream."""
        call, self._call = self._call, None
        if call is not None:
            self._on_lost()
            await call.end()

    def drop(self) -> None:
        """Give the stream up, if there is one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._on_lost()


def _may_pass(failure: IsthmusError) -> bool:
    """Whether the session may be gone on with after `failure`."""
    passing = isinstance(failure, UnreachableError | ProtocolError | SessionLostError) or is_refusal(failure)
    return passing and not isinstance(failure, FencedError | GoneError)


def _named(whole: list[CheckpointName], shared: CheckpointName | None) -> list[CheckpointName]:
    """The checkpoints to name of those that are `whole`, the newest first: the newest, and the newest of both sides."""
    if shared not in whole[MAX_NAMED:]:
        return whole[:MAX_NAMED]
    return [*whole[: MAX_NAMED - 1], *(name for name in whole if name == shared)]


def _check_answer(attached: pb.Attached, attach: pb.Attach, position: Position | None) -> None:
    """Refuse an answer that no trainer could give. Raises ProtocolError."""
    if attached.HasField("restored"):
        if attached.restored not in attach.checkpoints or attached.next_step != attached.restored.step:
            raise ProtocolError(
                f"the trainer has gone back to step {attached.next_step}; this agent has named no checkpoint of it"
            )
    elif position is None:
        raise ProtocolError("the trainer goes on from memory; this agent has only checkpoints")
    elif not max(position.gradient, position.report) <= attached.next_step <= position.forward:
        raise ProtocolError(f"the trainer waits for step {attached.next_step}; step {position.forward} is next")
