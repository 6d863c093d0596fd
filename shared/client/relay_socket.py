"""The way to one trainer through another one, whose `Relay` carries the bytes.

gRPC dials a socket of this process, whose connections go on through the other trainer. TLS and the token are those of the
trainer at the end of the way. No other user of this machine can open the socket.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog

from shared.client.connection import TrainerConnection
from shared.client.methods import method_path
from shared.errors import IsthmusError, ProtocolError, UnreachableError
from shared.transport.rpc.call_status import CallStatus
from shared.transport.rpc.carried_bytes import CARRIED_BYTES, WAITING_BYTES, carry_bytes
from shared.transport.stream.packets import message_deserializer
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
METHOD = "Relay"
IDLE_SECONDS = 120.0
"""Time without a byte after which a connection on the way is closed. gRPC pings more often."""


class RelayCall(NamedTuple):
    """An open relay: what takes the next bytes from it, None at its end, and what sends some."""

    receive: Callable[[], Awaitable[bytes | None]]
    send: Callable[[bytes], Awaitable[None]]


OpenRelay = Callable[[str], AbstractAsyncContextManager[RelayCall]]
"""Opener of a relay to an address."""


@asynccontextmanager
async def relay_call(connection: TrainerConnection, address: str, run_id: str) -> AsyncIterator[RelayCall]:
    """Have the trainer of a connection carry bytes to another one. Raises the IsthmusError that the call ended with."""
    method: Any = connection.tensors.stream_stream(
        method_path(METHOD),
        request_serializer=pb.RelayMessage.SerializeToString,
        response_deserializer=message_deserializer(pb.RelayMessage),
    )
    call = method(metadata=connection.metadata())
    status = CallStatus(call)
    waiting_bytes, taken = 0, asyncio.Event()

    async def send(data: bytes) -> None:
        nonlocal waiting_bytes
        while waiting_bytes + len(data) > WAITING_BYTES:
            taken.clear()
            await taken.wait()
        waiting_bytes += len(data)
        if not await took(pb.RelayMessage(data=data)):
            raise UnreachableError(f"the relay at {connection.address} has ended")

    async def took(message: pb.RelayMessage) -> bool:
        """Send a message; returns False if the trainer has ended the call well. Raises the error that it has ended with."""
        try:
            await connection.unless_rerouted(call.write(message))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # only the call's status says why
            if (failure := await status.failure()) is not None:
                raise connection.handle_failure(failure) from failure
            return False
        return True

    async def receive() -> bytes | None:
        nonlocal waiting_bytes
        message = await connection.await_answer(call.read())
        while message is not grpc.aio.EOF and 0 < message.taken <= waiting_bytes:
            waiting_bytes -= message.taken
            taken.set()
            message = await connection.await_answer(call.read())
        if message is grpc.aio.EOF:
            return None
        if message.WhichOneof("content") != "data" or len(message.data) > CARRIED_BYTES:
            raise ProtocolError(
                f"the relay at {connection.address} sent something else than bytes, or too many at once"
            )
        return bytes(message.data)

    opening = pb.RelayOpening(protocol_version=PROTOCOL_VERSION, address=address, run_id=run_id)
    try:
        async with connection.idle_timeout(METHOD):
            went = await took(pb.RelayMessage(opening=opening))
            opened = await connection.await_answer(call.read()) if went else grpc.aio.EOF
        if opened is grpc.aio.EOF or opened != pb.RelayMessage(opened=pb.RelayOpened()):
            raise ProtocolError(f"the trainer at {connection.address} did not open the relay")
        yield RelayCall(receive, send)
    finally:
        call.cancel()


class RelaySocket:
    """A socket of this process whose connections go to a trainer through another one. Used on the event loop."""

    def __init__(self, open_relay: OpenRelay, address: str) -> None:
        """open_relay: at the trainer on the way. address: of the trainer at its end."""
        self._open_relay = open_relay
        self._address = address
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def open(self) -> Path:
        """Listen at a socket, and return its path. Raises UnreachableError if there can be none."""
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="isthmus-"))  # of this user alone
            path = self._folder / "trainer.sock"
            self._server = await asyncio.start_unix_server(self._take, path, limit=CARRIED_BYTES)
        except OSError as failure:
            await self.close()
            raise UnreachableError(
                f"the trainer at {self._address} cannot be dialled through another one: no socket can be made here: {failure}"
            ) from failure
        return path

    async def close(self) -> None:
        """End all connections, and remove the socket."""
        if self._server is not None:
            self._server.close()
        for carrying in self._carrying:
            carrying.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._open_relay(self._address) as relay:
                await carry_bytes(reader, writer, relay.receive, relay.send, IDLE_SECONDS)
        except IsthmusError as failure:
            _log.info("a relayed connection has ended", trainer=self._address, reason=str(failure))
        finally:
            writer.close()
