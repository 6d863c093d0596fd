"""The training stream of an open session, and the edge's side of the handshake that attaches it (docs/recovery.md).

Knows nothing of weights, only steps and names of checkpoints. What follows from a lost stream is for `recovery`.
"""

from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.listener import RunListener
from edge_agent.training.window import Position, Window
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.client.stream_call import Stream, StreamCall, StreamListener
from shared.client.trainer import TrainerClient
from shared.concurrency.threads import Worker
from shared.errors import BusyError, GoneError, ProtocolError, SessionLostError, UnreachableError
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class TrainingStream:
    """At most one attached stream at a time. Used on the event loop."""

    def __init__(
        self,
        client: TrainerClient,
        stored: StoredSession,
        disk: Worker,
        window: Window,
        listener: RunListener,
    ) -> None:
        self._client = client
        self._stored = stored
        self._disk = disk
        self._window = window
        self._listener = listener
        self.lineage = 0
        """The session term in which both sides last went back to a checkpoint; 0 before that. Names of checkpoints hold it."""
        self._call: StreamCall[pb.TrainRequest, pb.TrainResponse] | None = None
        self._unused_term: int | None = None
        """A term that was counted up and that a busy trainer has not taken; the next attempt uses it."""

    @property
    def stream(self) -> Stream:
        """The stream that is attached. Raises UnreachableError when none is."""
        if self._call is None:
            raise UnreachableError(f"no training stream is attached to the trainer at {self._client.address}")
        return self._call.stream

    @property
    def attached(self) -> bool:
        """Whether a training stream is attached."""
        return self._call is not None

    async def attach(self, position: Position | None) -> pb.Attached:
        """Try once to attach a stream; return the trainer's answer. position: None with no state in memory.

        Nothing is written on either side while the trainer does not answer. Raises UnreachableError, BusyError, FencedError,
        GoneError, another RefusedError, AccessError, ProtocolError, or StorageError.
        """
        self.drop()
        await self._client.check_serving()
        checkpoints = _checkpoints_to_name(await self._disk.run(self._stored.checkpoints), self._stored.shared)
        if self._unused_term is None:
            term = await self._disk.run(self._stored.next_term)
        else:
            term, self._unused_term = self._unused_term, None
        attach = pb.Attach(
            session_id=self._stored.record.session_id,
            session_term=term,
            protocol_version=PROTOCOL_VERSION,
            checkpoints=[pb.CheckpointName(lineage=name.lineage, step=name.step) for name in checkpoints],
        )
        if position is not None:
            attach.position.CopyFrom(
                pb.Position(
                    lineage=self.lineage, gradient_step=position.gradient_step, report_step=position.report_step
                )
            )
        try:
            listener = StreamListener(self._window.accept, self._window.owed, self._listener.delivered)
            call, attached = await self._client.attach(attach, listener)
        except BusyError:
            self._unused_term = term
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
            self.lineage = term
        self._listener.attached(self._call.stream)
        return attached

    async def end(self) -> None:
        """Tell the trainer that no more comes, and wait until it has ended the stream."""
        call, self._call = self._call, None
        if call is not None:
            self._listener.detached()
            await call.end()

    def drop(self) -> None:
        """Give the stream up, if there is one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._listener.detached()


def _checkpoints_to_name(whole: list[CheckpointName], shared: CheckpointName | None) -> list[CheckpointName]:
    """As many as may be named of the checkpoints that are `whole`: the newest ones, and `shared`, which both sides have.

    whole, and the result: the newest first.
    """
    if shared not in whole[MAX_NAMED:]:
        return whole[:MAX_NAMED]
    return [*whole[: MAX_NAMED - 1], *(name for name in whole if name == shared)]


def _check_answer(attached: pb.Attached, attach: pb.Attach, position: Position | None) -> None:
    """Refuse an answer that contradicts what was asked. Raises ProtocolError."""
    if attached.HasField("restored"):
        if attached.restored not in attach.checkpoints or attached.next_step != attached.restored.step:
            raise ProtocolError(
                f"the trainer has gone back to step {attached.next_step}; this agent has named no checkpoint of it"
            )
    elif position is None:
        raise ProtocolError("the trainer goes on from memory; this agent has only checkpoints")
    elif not max(position.gradient_step, position.report_step) <= attached.next_step <= position.forward_step:
        raise ProtocolError(f"the trainer waits for step {attached.next_step}; step {position.forward_step} is next")
