"""Relays: bytes carried between an agent and another trainer, which the agent cannot reach itself.

The agent speaks with the other trainer as ever, with its own TLS and token: here only bytes pass.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import structlog

from cloud_trainer.peers.dialer import LOOK_SECONDS, PeerDialer
from cloud_trainer.sessions.fencing import check_version
from shared.bounds import is_session_id
from shared.client.proxy import open_way, through_proxy
from shared.concurrency.tasks import run_unless_failed
from shared.errors import ProtocolError
from shared.telemetry.logs import bind_run
from shared.transport.auth.callers import caller
from shared.transport.rpc.carried_bytes import CARRIED_BYTES, WAITING_BYTES, carry_bytes
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.transport.stream.packets import Damaged, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
IDLE_SECONDS = 120.0
"""Time without a byte after which a relay ends. An agent pings through it more often (link.keepalive_seconds)."""
_KERNEL_BYTES = 128 * 1024
"""Bytes of each direction of a connection that the kernel holds; it doubles them for its own records."""
_RETRY_SECONDS = 10.0
"""Delay before another attempt at the limit."""


class Relays:
    """The relays of one trainer. Used on the event loop."""

    def __init__(self, dialer: PeerDialer, most_of_one: int) -> None:
        """most_of_one: relays of one subject at one time."""
        self._dialer = dialer
        self._most_of_one = most_of_one
        self._under_way = Counter[str]()

    async def relay(self, requests: AsyncIterator[pb.RelayMessage | Damaged], context: Context) -> None:
        """Carry bytes to another trainer and back, until either side ends the stream."""
        with self._place():
            opening = await _opening(requests)
            check_version(opening.protocol_version)
            if is_session_id(opening.run_id):
                bind_run(opening.run_id)
            self._dialer.check_address(opening.address)
            reader, writer = await _connected(opening.address)
            _log.info("relay begun", to=opening.address)
            try:
                await context.write(pb.RelayMessage(opened=pb.RelayOpened()))
                stream = _Stream(requests, context)
                reading = asyncio.create_task(stream.read())
                try:
                    await run_unless_failed(
                        carry_bytes(reader, writer, stream.receive, stream.send, IDLE_SECONDS), reading
                    )
                finally:
                    reading.cancel()
                    await asyncio.wait({reading})
            finally:
                writer.transport.abort()  # a host that is gone would hold what is not sent for a quarter of an hour
                _log.info("relay ended", to=opening.address)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count a relay of the caller. Raises StatusError if there are too many."""
        subject = caller().subject
        if self._under_way[subject] >= self._most_of_one:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._most_of_one} relays of this caller are under way already (peers.max_relays_per_subject)",
                _RETRY_SECONDS,
            )
        self._under_way[subject] += 1
        try:
            yield
        finally:
            self._under_way[subject] -= 1
            if not self._under_way[subject]:
                del self._under_way[subject]


class _Stream:
    """The bytes of an open relay. The agent's are read at once, so that none waits where nobody counts them."""

    def __init__(self, requests: AsyncIterator[pb.RelayMessage | Damaged], context: Context) -> None:
        self._requests = requests
        self._context = context
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Bytes that have come, WAITING_BYTES at most; None at the end."""
        self._waiting_bytes = 0
        """Bytes that have come and not gone on."""
        self._going_bytes = 0
        """Bytes of these that were received last."""
        self._writing = asyncio.Lock()

    async def read(self) -> None:
        """Read until the agent ends the stream. Raises ProtocolError for a wrong message, or for more bytes than may wait."""
        async for message in self._requests:
            data = _data(undamaged(message))
            self._waiting_bytes += len(data)
            if self._waiting_bytes > WAITING_BYTES:
                raise ProtocolError(
                    f"{self._waiting_bytes} bytes of a relay wait for the other trainer; it may be {WAITING_BYTES}"
                )
            self._came.put_nowait(data)
        self._came.put_nowait(None)

    async def receive(self) -> bytes | None:
        """Return the next bytes, None at the end. Those before have gone on, which the agent is told."""
        if self._going_bytes:
            self._waiting_bytes -= self._going_bytes
            await self._write(pb.RelayMessage(taken=self._going_bytes))
        data = await self._came.get()
        self._going_bytes = 0 if data is None else len(data)
        return data

    async def send(self, data: bytes) -> None:
        """Send bytes to the agent."""
        await self._write(pb.RelayMessage(data=data))

    async def _write(self, message: pb.RelayMessage) -> None:
        async with self._writing:
            await self._context.write(message)


async def _opening(requests: AsyncIterator[pb.RelayMessage | Damaged]) -> pb.RelayOpening:
    """Read the first message. Raises ProtocolError for any other, or where it stays away."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        first = None
    message = pb.RelayMessage() if first is None else undamaged(first)
    if message != pb.RelayMessage(opening=message.opening):
        raise ProtocolError("a relay begins with a message that opens it and does nothing else")
    return message.opening


def _data(message: pb.RelayMessage) -> bytes:
    """Return the bytes of a later message. Raises ProtocolError."""
    if message.WhichOneof("content") != "data":
        raise ProtocolError("a relay that is open carries bytes, and another message came")
    if len(message.data) > CARRIED_BYTES:
        raise ProtocolError(f"a message of a relay has {len(message.data)} bytes; it may have {CARRIED_BYTES}")
    return message.data


async def _connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an allowed address. Raises StatusError."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            reader, writer = await open_way(host.strip("[]"), int(port), CARRIED_BYTES)
    except (OSError, TimeoutError) as failure:
        why = str(failure) or f"it did not answer within {LOOK_SECONDS:g} s"
        raise StatusError(
            grpc.StatusCode.UNAVAILABLE, f"this trainer cannot reach {through_proxy(address)}: {why}"
        ) from failure
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # the kernel would take megabytes for each
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, _KERNEL_BYTES)
    return reader, writer
