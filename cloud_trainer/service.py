"""The RPCs of `TrainerService`: each finds its session, hands over to what does the work, and turns errors into statuses."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import structlog
from torch import device

from cloud_trainer.announcements import BatchAnnouncements
from cloud_trainer.blocks import BlockReceiver, send_block, take_block
from cloud_trainer.config import TrainerConfig
from cloud_trainer.evaluation import evaluate
from cloud_trainer.session import Limits, Session, open_session
from cloud_trainer.sessions import Sessions
from cloud_trainer.training import TrainingStream
from shared.codec import aligned_buffer
from shared.errors import IsthmusError, ProtocolError
from shared.model.device import prepare_compute_thread
from shared.telemetry.metrics import TrainingMetrics
from shared.threads import Worker
from shared.transport.duplex import Duplex
from shared.transport.framing import Assembler
from shared.transport.packets import Damaged, Packet, deserializer, message_deserializer, serialize
from shared.transport.status import Refusal, one_line, status_of, undamaged
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
SERVICE = "isthmus.v1.TrainerService"

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class TrainerService:
    """All sessions of one trainer behind its RPCs."""

    def __init__(self, config: TrainerConfig, on: device, metrics: TrainingMetrics) -> None:
        self._config = config
        self._device = on
        self._limits = Limits(config.server.max_tensor_bytes, config.server.max_staleness)
        self._metrics = metrics
        self._sessions = Sessions(config.server.max_sessions)
        self._compute = Worker("compute", prepare_compute_thread)
        self._codec = Worker("codec")

    def close(self) -> None:
        """End the threads; called when the server has stopped."""
        self._compute.close()
        self._codec.close()

    async def open_session(self, request: pb.OpenSessionRequest, _context: Context) -> pb.OpenSessionResponse:
        """Build a session from what the edge asks for."""
        self._check_request(request)
        session_id = self._sessions.reserve()
        try:
            session = await self._compute.run(
                open_session,
                request,
                session_id,
                self._config.models.allowed,
                self._limits,
                self._device,
            )
            digests = await self._compute.run(session.block_digests)
        except BaseException:
            self._sessions.remove(session_id)
            raise
        self._sessions.add(session)
        self._metrics.sessions.set(len(self._sessions))
        _log.info("session opened", session=session_id, model=request.model.factory, cut=session.deployment.cut)
        return pb.OpenSessionResponse(
            session_id=session_id, block_digests=digests, max_message_bytes=self._config.server.max_message_bytes
        )

    async def train(self, _requests: object, context: Context) -> None:
        """Attach a stream to its session and serve it to its end."""
        received = await _read(context)
        if received is None:
            raise ProtocolError("the training stream ended before it was attached")
        first = undamaged(received)
        attach = first.message.attach
        if first.message != pb.TrainRequest(attach=attach) or first.payload:
            raise ProtocolError("a training stream begins with a message that attaches it and does nothing else")
        session = self._sessions.get(attach.session_id)
        if session.attached:
            raise Refusal(grpc.StatusCode.ALREADY_EXISTS, f"session {session.id} has a training stream already")
        if session.measured:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {session.id} was measured, which spoilt its weights"
            )
        if attach.next_step != session.next_step:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"session {session.id} waits for step {session.next_step}; the edge would go on with {attach.next_step}",
            )
        session.attached = True
        try:
            await self._serve(session, context)
        except BaseException:
            # A lost edge too: the cloud may have applied a step that the edge has not: such a session cannot be gone on with.
            self._remove(session.id)
            raise
        finally:
            session.attached = False

    async def _serve(self, session: Session, context: Context) -> None:
        link = self._config.link
        announcements = BatchAnnouncements(session, session.next_step, self._config.server.max_tensor_bytes)
        stream: Duplex[pb.TrainResponse, pb.TrainRequest] = Duplex(
            pb.TrainResponse,
            read=functools.partial(_read, context),
            write=context.write,
            assembler=Assembler(announcements.accept, aligned_buffer),
            chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            on_delivered=lambda _tensor, seconds, _arrival: self._metrics.module_seconds["downlink"].observe(seconds),
        )
        await stream.write(pb.TrainResponse(attached=pb.Attached(next_step=session.next_step)))
        await TrainingStream(session, stream, self._compute, self._codec, self._metrics).serve()
        # A lost edge looks at first like one that has ended its stream; a last word tells them apart, for it cannot be sent.
        await stream.write(pb.TrainResponse())

    async def evaluate(
        self, requests: AsyncIterator[Packet[pb.EvaluateRequest] | Damaged], _context: Context
    ) -> pb.EvaluateResponse:
        """Evaluate batches with the weights of now."""
        return await evaluate(
            requests, self._sessions.get, self._config.server.max_tensor_bytes, self._compute, self._codec
        )

    async def upload_block(
        self, requests: AsyncIterator[Packet[pb.UploadBlockRequest] | Damaged], _context: Context
    ) -> pb.UploadBlockResponse:
        """Replace one block."""
        receiver: BlockReceiver | None = None
        async for received in requests:
            packet = undamaged(received)
            receiver = receiver or BlockReceiver(self._sessions.get(packet.message.session_id))
            if (tensor := receiver.add(packet)) is not None:
                return pb.UploadBlockResponse(block_digest=await take_block(receiver.session, tensor, self._compute))
        raise ProtocolError("the stream ended before the block was whole")

    async def download_block(self, request: pb.DownloadBlockRequest, context: Context) -> None:
        """Send one block."""
        session = self._sessions.get(request.session_id)
        chunk_bytes = self._config.link.chunk_bytes
        async for packet in send_block(
            session, request.block, chunk_bytes, self._compute, weights_only=request.weights_only
        ):
            await context.write(packet)

    async def commit_migration(
        self, request: pb.CommitMigrationRequest, _context: Context
    ) -> pb.CommitMigrationResponse:
        """Move the cut of a session."""
        session = self._sessions.get(request.session_id)
        await self._compute.run(session.migrate, request.deployment, request.next_step)
        _log.info("cut moved", session=session.id, cut=session.deployment.cut, step=session.next_step)
        return pb.CommitMigrationResponse()

    async def measure_stage(self, request: pb.MeasureStageRequest, _context: Context) -> pb.MeasureStageResponse:
        """Time the cloud's blocks at a cut."""
        session = self._sessions.get(request.session_id)
        seconds = await self._compute.run(session.measure, request.cut, request.repeats)
        return pb.MeasureStageResponse(seconds=seconds)

    async def get_session(self, request: pb.GetSessionRequest, _context: Context) -> pb.GetSessionResponse:
        """What a session is doing."""
        session = self._sessions.get(request.session_id)
        return pb.GetSessionResponse(
            next_step=session.next_step,
            attached=session.attached,
            deployment=session.deployment,
            received_bytes=session.received_bytes,
            sent_bytes=session.sent_bytes,
        )

    async def close_session(self, request: pb.CloseSessionRequest, _context: Context) -> pb.CloseSessionResponse:
        """End a session."""
        self._remove(request.session_id)
        return pb.CloseSessionResponse()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The service as gRPC takes it: streamed messages pass our own serializer, the others protobuf's."""
        unary, up = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler

        def message(request: Any) -> dict[str, Any]:
            return {"request_deserializer": message_deserializer(request), "response_serializer": _to_bytes}

        def packets(request: Any, response: Callable[..., bytes]) -> dict[str, Any]:
            return {"request_deserializer": deserializer(request), "response_serializer": response}

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "OpenSession": unary(self._refusing(self.open_session), **message(pb.OpenSessionRequest)),
                "GetSession": unary(self._refusing(self.get_session), **message(pb.GetSessionRequest)),
                "CommitMigration": unary(self._refusing(self.commit_migration), **message(pb.CommitMigrationRequest)),
                "MeasureStage": unary(self._refusing(self.measure_stage), **message(pb.MeasureStageRequest)),
                "CloseSession": unary(self._refusing(self.close_session), **message(pb.CloseSessionRequest)),
                "Evaluate": up(self._refusing(self.evaluate), **packets(pb.EvaluateRequest, _to_bytes)),
                "UploadBlock": up(self._refusing(self.upload_block), **packets(pb.UploadBlockRequest, _to_bytes)),
                "DownloadBlock": grpc.unary_stream_rpc_method_handler(
                    self._refusing(self.download_block),
                    request_deserializer=message_deserializer(pb.DownloadBlockRequest),
                    response_serializer=serialize,
                ),
                "Train": grpc.stream_stream_rpc_method_handler(
                    self._refusing(self.train), **packets(pb.TrainRequest, serialize)
                ),
            },
        )

    def _check_request(self, request: pb.OpenSessionRequest) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the edge speaks protocol version {request.protocol_version}; this trainer speaks {PROTOCOL_VERSION}",
            )

    def _remove(self, session_id: str) -> None:
        self._sessions.remove(session_id)
        self._metrics.sessions.set(len(self._sessions))

    def _refusing(self, method: Callable[[Any, Context], Awaitable[T]]) -> Callable[[Any, Context], Awaitable[T]]:
        """`method`, with every error turned into a status and one sentence; a defect of ours keeps its traceback here."""

        @functools.wraps(method)
        async def call(request: Any, context: Context) -> T:
            try:
                return await method(undamaged(request), context)
            except IsthmusError as error:
                code, sentence = status_of(error), one_line(str(error))
                _log.warning("call refused", method=method.__name__, code=code.name, reason=sentence)
            except grpc.aio.BaseError as lost:  # gRPC's own: the edge has gone, or the server has stopped
                _log.warning("connection lost", method=method.__name__, reason=type(lost).__name__)
                raise
            except Exception as defect:
                code, sentence = (
                    grpc.StatusCode.INTERNAL,
                    one_line(f"a defect in the trainer ({type(defect).__name__}: {defect})"),
                )
                _log.exception("call failed", method=method.__name__)
            self._metrics.errors.labels(code.name).inc()
            return await context.abort(code, sentence)

        return call


async def _read(context: Context) -> Packet[pb.TrainRequest] | Damaged | None:
    packet = await context.read()
    return None if packet is grpc.aio.EOF else packet


def _to_bytes(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]
