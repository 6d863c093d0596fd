"""The gRPC call `Link`: begun, watched, and ended by an error of ours.

A lost link is noticed here: by a read or write that fails, or by a watch over a peer that is silent.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from shared.client.connection import TrainerConnection
from shared.client.idle_timeout import unanswered
from shared.codec import aligned_buffer
from shared.concurrency.tasks import is_cancelled
from shared.config import LinkConfig
from shared.errors import ClosedError, ProtocolError, SessionLostError, UnreachableError
from shared.runtime import StallWatch
from shared.transport.rpc.call_status import CallStatus
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor
from shared.transport.stream.packets import Damaged, Packet, PacketChannel
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from shared.wire.isthmus.v1.tensor_pb2 import Frame

METHOD = "Link"


@dataclass(frozen=True, slots=True)
class StreamListener:
    """The callbacks that a stream uses while it runs.

    accept: judges the trainer's announcements, before memory is taken for them. owed: the oldest step that the trainer
    has still to answer; a trainer that owes one and is silent for too long is given up. delivered: receives every
    tensor that the trainer has acknowledged, with its seconds, and the nanosecond of the trainer's clock at which it arrived.
    """

    accept: Callable[[Frame, TensorKey], None]
    owed: Callable[[], int | None]
    delivered: Callable[[WireTensor, float, int], None]


class LinkCall:
    """The call of one link; `stream` sends and receives on it."""

    def __init__(self, call: Any, connection: TrainerConnection, listener: StreamListener, link: LinkConfig) -> None:
        """call: as gRPC returns it."""
        self._call = call
        self._status = CallStatus(call)
        self._packets: AsyncIterator[Packet[LinkMessage] | Damaged] = aiter(call)
        self._connection = connection
        self._owed = listener.owed
        self._has_begun = False
        self._owed_step: int | None = None
        self._owed_since = self._heard_at = 0.0
        self._given_up: UnreachableError | None = None
        """Error with which a watch has ended the call; None where none has."""
        self._is_ended = False
        """True once this worker has cancelled the call."""
        self._watches: list[StallWatch] = []
        self._stall_seconds = link.stall_seconds
        self.stream: Duplex[LinkMessage, LinkMessage] = Duplex(
            LinkMessage,
            PacketChannel(self._read, self._write),
            assembler=Assembler(listener.accept, aligned_buffer),
            largest_chunk_bytes=link.chunk_bytes,
            window_bytes=link.window_bytes,
            note_delivered=listener.delivered,
        )

    async def begin(self, first: LinkMessage) -> LinkMessage:
        """Send the first message, and return the trainer's answer.

        From then on two watches give up a trainer that is silent. Raises the IsthmusError that the call ended with.
        """
        await self.stream.write(first)
        event = await self.stream.receive()
        if event is None or event[1]:
            raise ProtocolError(
                f"the trainer at {self._connection.address} did not answer the first message of {METHOD}"
            )
        self._has_begun = True
        self._watches = [
            StallWatch(
                self._seconds_owing,
                self._connection.call_timeout_seconds,
                partial(self._give_up, self._connection.call_timeout_key),
            ),
            StallWatch(
                lambda: self.stream.quiet_seconds, self._stall_seconds, partial(self._give_up, "link.stall_seconds")
            ),
        ]
        return event[0]

    async def end_writing(self) -> None:
        """Tell the trainer that no more comes; it ends the stream then, while another task receives."""
        self._stop_watches()
        await self._connection.await_answer(self._call.done_writing())

    def cancel(self) -> None:
        """Give the stream up without a word to the trainer."""
        self._stop_watches()
        self._is_ended = True
        self._call.cancel()

    def _give_up(self, key: str, seconds: float) -> None:
        """Give up a stream that was silent for so long: a read or write that waits on it raises UnreachableError."""
        self._given_up = unanswered(self._connection.address, METHOD, seconds, key)
        self.cancel()

    def _seconds_owing(self) -> float:
        """For how long the trainer has owed the same step without an ack, a report or a chunk; 0 while it owes none."""
        owed, now = self._owed(), time.monotonic()
        if owed is None or owed != self._owed_step:
            self._owed_step, self._owed_since = owed, now
        return now - max(self._owed_since, self._heard_at)

    def _stop_watches(self) -> None:
        for watch in self._watches:
            watch.stop()

    async def _read(self) -> Packet[LinkMessage] | Damaged | None:
        # Not by call.read(): after a failed write it raises at once, and messages before the end stay unread.
        try:
            packet = await anext(self._packets)
        except (StopAsyncIteration, grpc.aio.AioRpcError):
            await self._raise_failure()
            return None
        except asyncio.CancelledError:
            self._raise_lost()
            raise
        self._heard_at = time.monotonic()
        return packet

    async def _write(self, packet: Packet[LinkMessage]) -> None:
        try:
            await self._call.write(packet)
        except asyncio.CancelledError:
            self._raise_lost()
            raise
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as cause:
            # A failed write says only that the stream has ended; its status says why.
            await self._raise_failure()
            raise ProtocolError(
                f"the trainer at {self._connection.address} ended the stream of {METHOD} early"
            ) from cause

    def _raise_lost(self) -> None:
        """Raise what has cancelled the call, unless this worker has."""
        self._raise_given_up()
        if not (self._is_ended or is_cancelled()):
            raise self._connection.closed_failure()

    def _raise_given_up(self) -> None:
        if self._given_up is not None:
            raise self._given_up

    async def _raise_failure(self) -> None:
        """The call has ended: raise why, unless it has ended well.

        A session that the trainer no longer has although this call had begun was closed by an operator.
        """
        self._raise_given_up()
        if (failure := await self._status.failure()) is not None:
            error = self._connection.handle_failure(failure)
            is_closed = isinstance(error, SessionLostError) and failure.code() is grpc.StatusCode.NOT_FOUND
            if self._has_begun and is_closed:
                raise ClosedError(str(error)) from failure
            raise error
