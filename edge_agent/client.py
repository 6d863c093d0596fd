"""The trainer as the edge sees it: one method a call, errors in our own words. Knows nothing of models or data."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from shared.codec import aligned_buffer, codec_by_name
from shared.config import MAX_CHUNK_BYTES, LinkConfig
from shared.errors import ProtocolError, UnreachableError
from shared.tensor_wire import check_announcement
from shared.transport.duplex import Duplex
from shared.transport.framing import Assembler, WireTensor, chunks, role_name
from shared.transport.options import MESSAGE_OVERHEAD_BYTES, channel_options
from shared.transport.packets import Damaged, Packet, deserializer, message_deserializer, serialize
from shared.transport.status import error_of, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role

_PREFIX = "/isthmus.v1.TrainerService/"
T = TypeVar("T")
M = TypeVar("M", bound=Message)
Stream = Duplex[pb.TrainRequest, pb.TrainResponse]


class TrainerClient:
    """Calls to one trainer, over two connections: tensors on one, everything else on the other."""

    def __init__(self, address: str, link: LinkConfig, connect_timeout_seconds: float) -> None:
        self.address = address
        self._link = link
        self._connect_timeout_seconds = connect_timeout_seconds
        options = channel_options(MAX_CHUNK_BYTES + MESSAGE_OVERHEAD_BYTES, link.keepalive_seconds)
        self._control = grpc.aio.insecure_channel(address, options=options)
        self._tensors = grpc.aio.insecure_channel(address, options=options)

    async def __aenter__(self) -> Self:
        """Wait until the trainer answers. Raises UnreachableError after the connect timeout."""
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                await self._control.channel_ready()
        except BaseException as cause:
            await self.close()
            if not isinstance(cause, TimeoutError):
                raise
            raise UnreachableError(
                f"no trainer answered at {self.address} within {self._connect_timeout_seconds:g} s "
                "(trainer.address, trainer.connect_timeout_seconds)"
            ) from cause
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close both connections."""
        await self._control.close()
        await self._tensors.close()

    async def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        """See `TrainerService.OpenSession`."""
        return await self._call("OpenSession", request, pb.OpenSessionResponse)

    async def get_session(self, session_id: str) -> pb.GetSessionResponse:
        """See `TrainerService.GetSession`."""
        return await self._call("GetSession", pb.GetSessionRequest(session_id=session_id), pb.GetSessionResponse)

    async def commit_migration(self, session_id: str, next_step: int, deployment: pb.Deployment) -> None:
        """See `TrainerService.CommitMigration`."""
        request = pb.CommitMigrationRequest(session_id=session_id, next_step=next_step, deployment=deployment)
        await self._call("CommitMigration", request, pb.CommitMigrationResponse)

    async def measure_stage(self, session_id: str, cut: int, repeats: int) -> list[float]:
        """See `TrainerService.MeasureStage`."""
        request = pb.MeasureStageRequest(session_id=session_id, cut=cut, repeats=repeats)
        return list((await self._call("MeasureStage", request, pb.MeasureStageResponse)).seconds)

    async def close_session(self, session_id: str) -> None:
        """See `TrainerService.CloseSession`."""
        await self._call("CloseSession", pb.CloseSessionRequest(session_id=session_id), pb.CloseSessionResponse)

    async def attach(
        self,
        session_id: str,
        next_step: int,
        accept: Callable[[Frame], None],
        on_delivered: Callable[[WireTensor, float, int], None],
    ) -> "TrainingCall":
        """Attach the training stream. accept: judges what the trainer announces, before memory is taken for it."""
        method: Any = self._tensors.stream_stream(
            _PREFIX + "Train", request_serializer=serialize, response_deserializer=deserializer(pb.TrainResponse)
        )
        call = TrainingCall(method(), self, accept, on_delivered, self._link)
        await call.begin(session_id, next_step)
        return call

    async def evaluate(self, session_id: str, tensors: AsyncIterator[WireTensor]) -> pb.EvaluateResponse:
        """Evaluate batches: each a feature and then its label, numbered from 0."""
        method: Any = self._tensors.stream_unary(
            _PREFIX + "Evaluate",
            request_serializer=serialize,
            response_deserializer=message_deserializer(pb.EvaluateResponse),
        )
        failures: list[Exception] = []

        async def packets() -> AsyncIterator[Packet[pb.EvaluateRequest]]:
            try:
                async for tensor in tensors:
                    for frame, payload in chunks(tensor, self._link.chunk_bytes):
                        yield Packet(pb.EvaluateRequest(session_id=session_id, frame=frame), payload)
            except Exception as failure:
                failures.append(failure)
                raise

        try:
            response: pb.EvaluateResponse = await self.answered(method(packets()))
        except asyncio.CancelledError:
            # To gRPC a source that fails is a call that was cancelled, no more.
            for failure in failures:
                raise failure from failure.__cause__
            raise
        return response

    async def upload_block(self, session_id: str, tensor: WireTensor) -> int:
        """Replace one of the cloud's blocks; returns its digest there."""
        method: Any = self._tensors.stream_unary(
            _PREFIX + "UploadBlock",
            request_serializer=serialize,
            response_deserializer=message_deserializer(pb.UploadBlockResponse),
        )
        packets = (
            Packet(pb.UploadBlockRequest(session_id=session_id, frame=frame), payload)
            for frame, payload in chunks(tensor, self._link.chunk_bytes)
        )
        response: pb.UploadBlockResponse = await self.answered(method(packets))
        return response.block_digest

    async def download_block(self, session_id: str, block: int, max_bytes: int, *, weights_only: bool) -> memoryview:
        """The state of one of the cloud's blocks, refused when it is more than `max_bytes`."""
        method: Any = self._tensors.unary_stream(
            _PREFIX + "DownloadBlock",
            request_serializer=pb.DownloadBlockRequest.SerializeToString,
            response_deserializer=deserializer(pb.DownloadBlockResponse),
        )

        def accept(frame: Frame) -> None:
            if (frame.role, frame.step) != (Role.ROLE_BLOCK, block):
                raise ProtocolError(
                    f"the trainer sends the {role_name(frame.role)} of step {frame.step}; block {block} was asked for"
                )
            check_announcement(frame, codec_by_name("raw"), max_bytes)

        assembler = Assembler(accept, aligned_buffer)
        call = method(pb.DownloadBlockRequest(session_id=session_id, block=block, weights_only=weights_only))
        while (packet := await self.answered(call.read())) is not grpc.aio.EOF:
            if (tensor := assembler.add(packet.message.frame, packet.payload)) is not None:
                return tensor.payload
        raise ProtocolError(f"the stream of block {block} ended before it was whole")

    async def answered(self, answer: Awaitable[T | Damaged]) -> T:
        """Await a gRPC answer; its failures become ours."""
        try:
            return undamaged(await answer)
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure, self.address) from failure

    async def _call(self, name: str, request: Any, response_type: type[M]) -> M:
        method = self._control.unary_unary(
            _PREFIX + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_deserializer(response_type),
        )
        return await self.answered(method(request))


class TrainingCall:
    """An attached training stream; `stream` carries its tensors."""

    def __init__(
        self,
        call: Any,
        client: TrainerClient,
        accept: Callable[[Frame], None],
        on_delivered: Callable[[WireTensor, float, int], None],
        link: LinkConfig,
    ) -> None:
        self._call = call
        self._client = client
        self.stream: Stream = Duplex(
            pb.TrainRequest,
            read=self._read,
            write=self._write,
            assembler=Assembler(accept, aligned_buffer),
            chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            on_delivered=on_delivered,
        )

    async def begin(self, session_id: str, next_step: int) -> None:
        """Name the session and hear that it waits for this step."""
        await self.stream.write(pb.TrainRequest(attach=pb.Attach(session_id=session_id, next_step=next_step)))
        event = await self.stream.receive()
        if event is None or not event[0].HasField("attached"):
            raise ProtocolError(f"the trainer at {self._client.address} did not answer the attach message")
        if event[0].attached.next_step != next_step:
            raise ProtocolError(
                f"the trainer at {self._client.address} waits for step {event[0].attached.next_step}; step {next_step} is next"
            )

    async def end(self) -> None:
        """Tell the trainer that no more comes, and wait until it has ended the stream."""
        await self._client.answered(self._call.done_writing())
        while await self.stream.receive() is not None:
            pass

    def cancel(self) -> None:
        """Give the stream up."""
        self._call.cancel()

    async def _read(self) -> Packet[pb.TrainResponse] | Damaged | None:
        packet = await self._client.answered(self._call.read())
        if packet is not grpc.aio.EOF:
            return packet  # type: ignore[no-any-return]
        await self._check_status()
        return None

    async def _write(self, packet: Packet[pb.TrainRequest]) -> None:
        try:
            await self._call.write(packet)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as cause:
            # What a failed write says is that the stream has ended; its status says why.
            await self._check_status()
            raise ProtocolError(f"the trainer at {self._client.address} ended the training stream early") from cause

    async def _check_status(self) -> None:
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            failure = grpc.aio.AioRpcError(
                code,
                await self._call.initial_metadata(),
                await self._call.trailing_metadata(),
                details=await self._call.details(),
            )
            raise error_of(failure, self._client.address)
