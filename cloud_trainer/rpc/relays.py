"""Relays: bytes carried between an agent and another trainer, which the agent cannot reach itself.

The agent speaks with the other trainer as ever, with its own TLS and token: here only bytes pass.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import structlog

from cloud_trainer.peers.dialer import LOOK_SECONDS, PeerDialer
from cloud_trainer.sessions.fencing import check_version
from shared.bounds import is_session_id
from shared.errors import ProtocolError
from shared.telemetry.logs import bind_run
from shared.transport.auth.callers import caller
from shared.transport.rpc.carried_bytes import CARRIED_BYTES, carry_bytes
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.transport.stream.packets import Damaged, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
IDLE_SECONDS = 120.0
"""Time without a byte after which a relay ends. An agent pings through it more often (link.keepalive_seconds)."""
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

                async def receive() -> bytes | None:
                    message = await anext(requests, None)
                    return None if message is None else _data(undamaged(message))

                async def send(data: bytes) -> None:
                    await context.write(pb.RelayMessage(data=data))

                await carry_bytes(reader, writer, receive, send, IDLE_SECONDS)
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
            return await asyncio.open_connection(host.strip("[]"), int(port), limit=CARRIED_BYTES)
    except (OSError, TimeoutError) as failure:
        why = str(failure) or f"it did not answer within {LOOK_SECONDS:g} s"
        raise StatusError(grpc.StatusCode.UNAVAILABLE, f"this trainer cannot reach {address}: {why}") from failure
