"""The trainer as the edge sees it: one method a call, errors in our own words. Knows nothing of models or data."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from shared.client.config import TrainerAddressConfig
from shared.client.credentials import PLAIN, TrainerAccess
from shared.client.idle_timeout import IdleTimeout, idle_timeout
from shared.client.training_call import StreamListener, TrainingCall
from shared.codec import aligned_buffer, codec_by_name
from shared.config import MAX_CHUNK_BYTES, LinkConfig
from shared.errors import AccessError, BusyError, IsthmusError, ProtocolError, UnreachableError, one_line
from shared.tensor_wire import check_announcement
from shared.transport.rpc.call_status import CallStatus
from shared.transport.rpc.options import MESSAGE_OVERHEAD_BYTES, channel_options
from shared.transport.rpc.status import error_of
from shared.transport.stream.framing import Assembler, WireTensor, block_key, chunks, key_of
from shared.transport.stream.packets import Damaged, Packet, deserializer, message_deserializer, serialize, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Frame

_log = structlog.get_logger(__name__)
_PREFIX = "/isthmus.v1.TrainerService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_UNTRUSTED = ("handshake failed", "Hostname Verification")
"""gRPC's own words for a TLS handshake that came to nothing, and for a certificate of somebody else."""
_CONNECTIONS_OWN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)
"""How calls end over a connection that has gone wrong by itself, or at a trainer that has."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def _ignore(_code: grpc.StatusCode) -> None:
    pass


class TrainerClient:
    """Calls to one trainer, over two connections: tensors on one, everything else on the other."""

    def __init__(
        self,
        trainer: TrainerAddressConfig,
        link: LinkConfig,
        on_failure: Callable[[grpc.StatusCode], None] = _ignore,
        access: TrainerAccess = PLAIN,
    ) -> None:
        """on_failure: told how each call ended that failed."""
        self._access = access
        self.address = trainer.address
        self._connect_timeout_seconds = trainer.connect_timeout_seconds
        self.call_timeout_seconds = trainer.call_timeout_seconds
        self._on_failure = on_failure
        self._link = link
        self._options = channel_options(MAX_CHUNK_BYTES + MESSAGE_OVERHEAD_BYTES, link.keepalive_seconds)
        self._retired: list[grpc.aio.Channel] = []
        """Connections that no new call is made on; the training stream may still be on one of them."""
        self._connect()

    def _connect(self) -> None:
        self._credentials = self._access.credentials()
        self._control = self._access.channel(self.address, self._options)
        self._tensors = self._access.channel(self.address, self._options)

    async def __aenter__(self) -> Self:
        """Wait until the trainer answers. Raises UnreachableError after the connect timeout, AccessError at once when one
        of the two does not trust the other's certificate."""
        _log.info("connecting", trainer=self.address)
        try:
            await self._wait_until_connected()
        except BaseException:
            await self.close()
            raise
        return self

    async def _wait_until_connected(self) -> None:
        why = ""
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                while (state := self._control.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        why = f": {await self._explain_failure()}"
                        if any(words in why for words in _UNTRUSTED):
                            raise AccessError(
                                f"no secure connection to the trainer at {self.address} (tls.ca, tls.server_name){why}"
                            )
                    await self._control.wait_for_state_change(state)
        except TimeoutError as cause:
            raise UnreachableError(
                f"no trainer answered at {self.address} within {self._connect_timeout_seconds:g} s "
                f"(trainer.address, trainer.connect_timeout_seconds){why}"
            ) from cause

    async def _explain_failure(self) -> str:
        """Why the last attempt to connect failed: gRPC tells it to a call only."""
        try:
            check: Any = self._control.unary_unary(HEALTH_CHECK)
            await check(b"", wait_for_ready=False)
        except grpc.aio.AioRpcError as failure:
            why = one_line((failure.details() or "").rpartition("last error: ")[2])
            closed = "; does it want TLS, or a certificate from an authority that it trusts ([tls])?"
            return why + (closed if why.endswith("Socket closed") else "")
        return "a moment later it did"

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._close_retired()
        await self._control.close()
        await self._tensors.close()

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.pop().close()

    async def reach(self) -> None:
        """Returns when the trainer answers, and serves. Nothing is told it, and nothing changes by it.

        Raises UnreachableError or BusyError, or ProtocolError where the connection has gone wrong.
        """
        check = self._tensors.unary_unary(
            HEALTH_CHECK,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            answer = await check(HealthCheckRequest(), timeout=self._connect_timeout_seconds)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:  # it answers, and attaching shows what it is
                return
            error = self.handle_failure(failure)
            if isinstance(error, UnreachableError | BusyError | ProtocolError):
                raise error from failure
        else:
            if answer.status == HealthCheckResponse.NOT_SERVING:
                raise UnreachableError(f"the trainer at {self.address} says that it does not serve now")

    async def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        """See `TrainerService.OpenSession`."""
        return await self._call("OpenSession", request, pb.OpenSessionResponse)

    async def get_session(self, session_id: str) -> pb.GetSessionResponse:
        """See `TrainerService.GetSession`."""
        return await self._call("GetSession", pb.GetSessionRequest(session_id=session_id), pb.GetSessionResponse)

    async def commit_migration(
        self, session_id: str, next_step: int, deployment: pb.Deployment, fence: pb.Fence
    ) -> None:
        """See `TrainerService.CommitMigration`."""
        request = pb.CommitMigrationRequest(
            session_id=session_id, next_step=next_step, deployment=deployment, fence=fence
        )
        await self._call("CommitMigration", request, pb.CommitMigrationResponse)

    async def measure_stage(self, session_id: str, cut: int, repeats: int) -> list[float]:
        """See `TrainerService.MeasureStage`."""
        request = pb.MeasureStageRequest(session_id=session_id, cut=cut, repeats=repeats)
        return list((await self._call("MeasureStage", request, pb.MeasureStageResponse, repeats=repeats)).seconds)

    async def train_copy(self, request: pb.TrainCopyRequest) -> pb.TrainCopyResponse:
        """See `TrainerService.TrainCopy`; returns how it ended. The trainer may train for long, and not be silent for long."""
        method: Any = self._control.unary_stream(
            _PREFIX + "TrainCopy",
            request_serializer=pb.TrainCopyRequest.SerializeToString,
            response_deserializer=message_deserializer(pb.TrainCopyResponse),
        )
        call = method(request, metadata=self._access.metadata())
        end: pb.TrainCopyResponse | None = None
        try:
            async with self.idle_timeout("TrainCopy") as idle_timeout:
                while (answer := await self.await_answer(call.read())) is not grpc.aio.EOF:
                    idle_timeout.renew()
                    end = answer
        finally:
            call.cancel()
        if end is None:
            raise ProtocolError("the trainer ended the training of a copy without an answer")
        return end

    async def close_session(self, session_id: str, fence: pb.Fence, *, resumable: bool) -> None:
        """See `TrainerService.CloseSession`."""
        request = pb.CloseSessionRequest(session_id=session_id, fence=fence, resumable=resumable)
        await self._call("CloseSession", request, pb.CloseSessionResponse)

    async def attach(
        self,
        attach: pb.Attach,
        listener: StreamListener,
    ) -> tuple[TrainingCall, pb.Attached]:
        """Attach the training stream; the one before was given up."""
        await self._close_retired()
        method: Any = self._tensors.stream_stream(
            _PREFIX + "Train", request_serializer=serialize, response_deserializer=deserializer(pb.TrainResponse)
        )
        call = TrainingCall(method(metadata=self._access.metadata()), self, listener, self._link)
        try:
            async with self.idle_timeout("Train"):
                return call, await call.begin(attach)
        except BaseException:
            call.cancel()
            raise

    async def evaluate(self, session_id: str, tensors: AsyncIterator[WireTensor]) -> pb.EvaluateResponse:
        """Evaluate batches: each its labels and then its feature, numbered from 1."""
        method: Any = self._tensors.stream_unary(
            _PREFIX + "Evaluate",
            request_serializer=serialize,
            response_deserializer=message_deserializer(pb.EvaluateResponse),
        )
        failures: list[Exception] = []

        async def packets(idle_timeout: IdleTimeout) -> AsyncIterator[Packet[pb.EvaluateRequest]]:
            idle_timeout.pause()  # what takes its time now is our own computation
            try:
                async for tensor in tensors:
                    for frame, payload in chunks(tensor, self._link.chunk_bytes):
                        idle_timeout.renew()
                        yield Packet(pb.EvaluateRequest(session_id=session_id, frame=frame), payload)
                        idle_timeout.pause()
            except Exception as failure:
                failures.append(failure)
                raise
            idle_timeout.renew()

        try:
            async with self.idle_timeout("Evaluate") as idle_timeout:
                response: pb.EvaluateResponse = await self._await_end(
                    method(packets(idle_timeout), metadata=self._access.metadata())
                )
        except asyncio.CancelledError:
            # gRPC reports a source that fails as a call that was cancelled, and nothing else.
            for failure in failures:
                raise failure from failure.__cause__
            raise
        return response

    async def upload_block(self, session_id: str, tensor: WireTensor, fence: pb.Fence) -> int:
        """Replace one of the cloud's blocks; returns its digest there."""
        method: Any = self._tensors.stream_unary(
            _PREFIX + "UploadBlock",
            request_serializer=serialize,
            response_deserializer=message_deserializer(pb.UploadBlockResponse),
        )

        def packets(idle_timeout: IdleTimeout) -> Iterator[Packet[pb.UploadBlockRequest]]:
            for frame, payload in chunks(tensor, self._link.chunk_bytes):
                idle_timeout.renew()
                yield Packet(pb.UploadBlockRequest(session_id=session_id, frame=frame, fence=fence), payload)
            idle_timeout.renew()

        async with self.idle_timeout("UploadBlock") as idle_timeout:
            response: pb.UploadBlockResponse = await self._await_end(
                method(packets(idle_timeout), metadata=self._access.metadata())
            )
        return response.block_digest

    async def download_block(self, session_id: str, block: int, max_bytes: int, *, weights_only: bool) -> memoryview:
        """The state of one of the cloud's blocks, refused when it is more than `max_bytes`."""
        method: Any = self._tensors.unary_stream(
            _PREFIX + "DownloadBlock",
            request_serializer=pb.DownloadBlockRequest.SerializeToString,
            response_deserializer=deserializer(pb.DownloadBlockResponse),
        )

        def accept(frame: Frame) -> None:
            if (key := key_of(frame)) != block_key(block):
                raise ProtocolError(f"the trainer sends {key}; block {block} was asked for")
            check_announcement(frame, codec_by_name("raw"), max_bytes)

        assembler = Assembler(accept, aligned_buffer)
        request = pb.DownloadBlockRequest(session_id=session_id, block=block, weights_only=weights_only)
        call = method(request, metadata=self._access.metadata())
        async with self.idle_timeout("DownloadBlock") as idle_timeout:
            while (packet := await self.await_answer(call.read())) is not grpc.aio.EOF:
                idle_timeout.renew()
                if (tensor := assembler.add(packet.message.frame, packet.payload)) is not None:
                    return tensor.payload
        raise ProtocolError(f"the stream of block {block} ended before it was whole")

    async def await_answer(self, answer: Awaitable[T | Damaged]) -> T:
        """Await a gRPC answer; its failures become ours."""
        try:
            return undamaged(await answer)
        except grpc.aio.AioRpcError as failure:
            raise self.handle_failure(failure) from failure

    async def _await_end(self, call: Any) -> Any:
        """Await the answer to a stream of ours."""
        status = CallStatus(call)
        try:
            return undamaged(await call)
        except grpc.aio.AioRpcError as failure:
            raise self.handle_failure(await status.failure() or failure) from failure

    def handle_failure(self, failure: grpc.aio.AioRpcError) -> IsthmusError:
        """Count a failed call, replace a connection that must not be used again, and return the failure as an error of ours.

        A lost connection is replaced where the certificates have changed since it was made. One over which a call failed in
        the trainer's own name is replaced at once: HTTP/2 packs the headers of a call by those of the calls before, so once a
        byte of them was damaged on the way, no later call of that connection is understood.
        """
        self._on_failure(failure.code())
        error = error_of(failure, self.address)
        outdated = isinstance(error, UnreachableError) and self._access.credentials() is not self._credentials
        if outdated or failure.code() in _CONNECTIONS_OWN:
            self._retired += [self._control, self._tensors]
            self._connect()
        return error

    def idle_timeout(self, call: str, repeats: int = 1) -> AbstractAsyncContextManager[IdleTimeout]:
        """Raises UnreachableError when the trainer makes no progress for longer than it may.

        repeats: how many times the work is asked for at once.
        """
        return idle_timeout(self.address, call, self.call_timeout_seconds * repeats)

    async def _call(self, name: str, request: Any, response_type: type[M], repeats: int = 1) -> M:
        method = self._control.unary_unary(
            _PREFIX + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_deserializer(response_type),
        )
        async with self.idle_timeout(name, repeats):
            return await self.await_answer(method(request, metadata=self._access.metadata()))
