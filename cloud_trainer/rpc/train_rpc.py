"""The call `Train`: attaches a stream to its session and serves it until it ends."""

import asyncio
import functools
from contextlib import ExitStack, suppress

import grpc
import structlog

from cloud_trainer.config import TrainerConfig
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.cloud_compute import CloudCompute
from cloud_trainer.rpc.incoming_batches import IncomingBatches
from cloud_trainer.rpc.stream_server import StreamServer
from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.handshake import Handshake
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.codec import aligned_buffer
from shared.concurrency.tasks import run_together
from shared.errors import ProtocolError, one_line
from shared.runtime import StallWatch
from shared.telemetry.logs import bind_session
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.transport.stream.channel import PacketChannel
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey
from shared.transport.stream.packets import Damaged, Packet, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role

_log = structlog.get_logger(__name__)


class TrainRpc:
    """All training streams of one trainer."""

    def __init__(
        self,
        config: TrainerConfig,
        sessions: SessionRegistry,
        handshake: Handshake,
        checkpointer: SessionCheckpointer,
        threads: TrainerThreads,
        metrics: TrainerMetrics,
    ) -> None:
        self._link = config.link
        self._max_tensor_bytes = config.server.max_tensor_bytes
        self._sessions = sessions
        self._handshake = handshake
        self._checkpointer = checkpointer
        self._threads = threads
        self._metrics = metrics
        self._servers: dict[str, StreamServer] = {}
        self._stopping = False

    def check_open(self) -> None:
        """Refuse to begin or resume a training once the trainer is about to stop. Raises StatusError."""
        if self._stopping:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "the trainer is about to stop; try again")

    async def stop(self, seconds: float) -> None:
        """Have every attached edge end its batches and take a checkpoint. Returns when all have, or after so many seconds."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(server.say_stopping() for server in self._servers.values()))
                while attached := [each.attachment for each in self._sessions.built if each.attachment.attached]:
                    await asyncio.gather(*(attachment.wait_until_ended() for attachment in attached))
                    await asyncio.sleep(0)
                await self._checkpointer.wait_for_all()

    async def train(self, _requests: object, context: Context) -> None:
        """Attach a stream to its session and serve it to its end."""
        received = await _read(context)
        if received is None:
            raise ProtocolError("the training stream ended before it was attached")
        first = undamaged(received)
        attach = first.message.attach
        if first.message != pb.TrainRequest(attach=attach) or first.payload:
            raise ProtocolError("a training stream begins with a message that attaches it and does nothing else")
        self.check_open()
        with ExitStack() as uses:
            session, answer = await self._handshake.attach(attach, uses)
            bind_session(session.id)
            await self._serve_attached(session, attach, answer, context)

    async def _serve_attached(self, session: Session, attach: pb.Attach, answer: pb.Attached, context: Context) -> None:
        position = None if answer.HasField("restored") else attach.position
        serving = asyncio.create_task(self._serve(session, context, answer, position))
        session.attachment.attach(serving)
        _log.info("edge attached", session=session.id, term=attach.session_term, step=session.training.next_step)
        try:
            await asyncio.wait({serving})
            if serving.cancelled():
                raise self._refusal_of_ended(session, attach)
            serving.result()
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            _log.info("edge detached", session=session.id, step=session.training.next_step, reason=_reason(serving))
            if session.attachment.detach(serving) and session.training.half_done:
                self._sessions.remove(session)
                _log.warning("session given up: a step failed", step=session.training.next_step)

    def _refusal_of_ended(self, session: Session, attach: pb.Attach) -> StatusError:
        if session.attachment.term != attach.session_term:
            return StatusError(
                grpc.StatusCode.ABORTED,
                f"session {session.id} was attached with term {session.attachment.term}; this stream is of another",
            )
        if self._sessions.find(session.id) is not session:
            code = grpc.StatusCode.NOT_FOUND if session.forgotten else grpc.StatusCode.ABORTED
            return StatusError(code, f"session {session.id} was closed while it trained")
        return StatusError(grpc.StatusCode.UNAVAILABLE, "nothing was heard of what was sent; attach again")

    async def _serve(
        self, session: Session, context: Context, answer: pb.Attached, position: pb.Position | None
    ) -> None:
        link = self._link
        first_labels = TensorKey(session.training.next_step, Role.ROLE_LABEL)
        incoming = IncomingBatches(session, first_labels, self._max_tensor_bytes)
        stream: Duplex[pb.TrainResponse, pb.TrainRequest] = Duplex(
            pb.TrainResponse,
            PacketChannel(functools.partial(_read, context), context.write),
            assembler=Assembler(incoming.accept, aligned_buffer),
            chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            on_delivered=lambda _tensor, seconds, _arrival: self._metrics.phase_seconds["downlink"].observe(seconds),
        )
        take = functools.partial(self._checkpointer.take, session)
        compute = CloudCompute(
            session.training, self._threads.compute_lane(session.id), self._threads.codec_lane(session.id)
        )
        server = StreamServer(session, stream, incoming, compute, self._metrics, take)
        self._servers[session.id] = server
        serving = asyncio.current_task()
        assert serving is not None, "a coroutine runs in a task"
        watch = StallWatch(lambda: stream.quiet_seconds, link.stall_seconds, lambda _seconds: serving.cancel())
        try:
            # The answer goes first; an edge that does not read it is none the slower served for that.
            late = [server.say_stopping()] if self._stopping else []
            await run_together(stream.write(pb.TrainResponse(attached=answer)), server.run(position), *late)
        finally:
            watch.stop()
            if self._servers.get(session.id) is server:
                del self._servers[session.id]
        # A lost edge looks at first like one that has ended its stream; a last word tells them apart, for it cannot be sent.
        await stream.write(pb.TrainResponse())


def _reason(serving: "asyncio.Task[None]") -> str:
    """Why a stream that was served has ended."""
    if serving.cancelled():
        return "the stream was given up"
    failure = serving.exception()
    return "the edge has ended the stream" if failure is None else one_line(str(failure) or type(failure).__name__)


async def _read(context: Context) -> Packet[pb.TrainRequest] | Damaged | None:
    packet = await context.read()
    return None if packet is grpc.aio.EOF else packet
