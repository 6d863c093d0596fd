"""The call `Train`: attaches a stream to its session and serves it until it ends."""

import asyncio
import functools
from contextlib import ExitStack

import structlog

from cloud_trainer.config import TrainerConfig
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.cloud_compute import CloudCompute
from cloud_trainer.rpc.incoming_batches import IncomingBatches
from cloud_trainer.rpc.serving import ServedStream, first_packet, serve_attached
from cloud_trainer.rpc.shutdown import Shutdown
from cloud_trainer.rpc.stream_server import StreamServer
from cloud_trainer.sessions.attachment import TRAINING
from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.handshake import Handshake
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session import CutSession
from cloud_trainer.sessions.threads import TrainerThreads
from shared.concurrency.tasks import run_together
from shared.errors import ProtocolError
from shared.telemetry.logs import bind_session
from shared.transport.rpc.refusing import Context
from shared.transport.stream.framing import TensorKey
from shared.transport.stream.packets import Packet
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
        shutdown: Shutdown,
        threads: TrainerThreads,
        metrics: TrainerMetrics,
    ) -> None:
        self._link = config.link
        self._max_tensor_bytes = config.server.max_tensor_bytes
        self._sessions = sessions
        self._handshake = handshake
        self._checkpointer = checkpointer
        self._shutdown = shutdown
        self._threads = threads
        self._metrics = metrics
        self._servers: dict[str, StreamServer] = {}

    async def say_stopping(self) -> None:
        """Ask every attached edge to end its batches, to take a checkpoint and to end the stream."""
        await asyncio.gather(*(server.say_stopping() for server in self._servers.values()))

    async def train(self, _requests: object, context: Context) -> None:
        """Attach a stream to its session and serve it to its end."""
        first: Packet[pb.TrainRequest] = await first_packet(context)
        attach = first.message.attach
        if first.message != pb.TrainRequest(attach=attach) or first.payload:
            raise ProtocolError("a training stream begins with a message that attaches it and does nothing else")
        self._shutdown.check_open()
        with ExitStack() as uses:
            session, answer = await self._handshake.attach(attach, uses)
            bind_session(session.id)
            position = None if answer.HasField("restored") else attach.position
            try:
                await serve_attached(session, TRAINING, self._serve(session, context, answer, position), self._sessions)
            finally:
                if session.training.half_done and not session.attachment.attached:
                    self._sessions.remove(session)
                    _log.warning("session given up: a step failed", step=session.training.next_step)

    async def _serve(
        self, session: CutSession, context: Context, answer: pb.Attached, position: pb.Position | None
    ) -> None:
        first_labels = TensorKey(session.training.next_step, Role.ROLE_LABEL)
        incoming = IncomingBatches(session, first_labels, self._max_tensor_bytes)
        served: ServedStream[pb.TrainResponse, pb.TrainRequest] = ServedStream(
            context, pb.TrainResponse, incoming.accept, self._link, self._metrics
        )
        stream = served.stream
        take = functools.partial(self._checkpointer.take, session)
        compute = CloudCompute(
            session.training, self._threads.compute_lane(session.id), self._threads.codec_lane(session.id)
        )
        server = StreamServer(session, stream, incoming, compute, self._metrics, take)
        self._servers[session.id] = server
        try:
            # The answer goes first; an edge that does not read it is none the slower served for that.
            late = [server.say_stopping()] if self._shutdown.begun else []
            await served.run(run_together(stream.write(pb.TrainResponse(attached=answer)), server.run(position), *late))
        finally:
            if self._servers.get(session.id) is server:
                del self._servers[session.id]
