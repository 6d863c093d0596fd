"""A training stream seen from either end: tensors go out under credits, tensors and notes come in, acks stay inside."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from shared.errors import ProtocolError
from shared.transport.credits import ReceiveLedger, SendCredits
from shared.transport.framing import Assembler, WireTensor, chunks
from shared.transport.link_rate import LinkRate
from shared.transport.packets import Damaged, Packet
from shared.transport.peer_clock import PeerClock
from shared.transport.status import DamagedError
from shared.wire.isthmus.v1.tensor_pb2 import Ack
from shared.wire.isthmus.v1.trainer_pb2 import TrainRequest, TrainResponse

ACK_DELAY_SECONDS = 0.002
"""How long an ack waits for a message that goes the same way and can carry it. Far below any round trip that credits
have to cover, and it spares most steps two messages."""

INITIAL_WINDOW_BYTES = 512 * 1024
"""Under way before the link is known."""
FIRST_CHUNK_BYTES = 64 * 1024
"""A chunk before the link is known: small enough that the first tensor measures it."""
LEAST_CHUNK_BYTES = 16 * 1024
"""Below this, messages cost more than they say."""
CHUNK_SECONDS = 0.025
"""How long a chunk takes on the link: what a control message waits for at most, and how often the link is measured."""

Out = TypeVar("Out", bound=TrainRequest | TrainResponse)
In = TypeVar("In", bound=TrainRequest | TrainResponse)


class Duplex(Generic[Out, In]):
    """One end of an attached training stream.

    read: the next packet, or None at the end of the stream. write: hands one packet to gRPC; called by one task at a time.
    outgoing: the message type of this end. on_delivered: told of every tensor that the peer has acknowledged, with the
    seconds from its first byte to the acknowledgement of its last, and when that arrived by the receiver's clock.
    chunk_bytes: the largest chunk; on a slow link they are smaller. window_bytes: what the peer may have under way.
    """

    def __init__(
        self,
        outgoing: type[Out],
        read: Callable[[], Awaitable[Packet[In] | Damaged | None]],
        write: Callable[[Packet[Out]], Awaitable[None]],
        assembler: Assembler,
        chunk_bytes: int,
        window_bytes: int,
        on_delivered: Callable[[WireTensor, float, int], None],
    ) -> None:
        self._outgoing = outgoing
        self._read = read
        self._write = write
        self._assembler = assembler
        self._chunk_bytes = chunk_bytes
        self._writing = asyncio.Lock()
        self._due: Ack | None = None
        self._ack_task: asyncio.Task[None] | None = None
        self._tensors_under_way: deque[tuple[int, float, WireTensor]] = deque()
        self._chunks_under_way: deque[tuple[int, float]] = deque()
        self._on_delivered = on_delivered
        self._credits = SendCredits(INITIAL_WINDOW_BYTES)
        self._ledger = ReceiveLedger(window_bytes)
        self.link = LinkRate()
        self.peer_clock = PeerClock()

    async def write(self, message: Out, payload: memoryview | bytes = b"") -> None:
        """Send one message, with the ack that is due."""
        async with self._writing:
            if self._due is not None:
                message.ack.CopyFrom(self._due)
                self._due = None
            await self._write(Packet(message, payload))

    async def send(self, tensor: WireTensor) -> None:
        """Send a tensor chunk by chunk as credits allow. One tensor at a time."""
        started = time.monotonic_ns()
        self._tensors_under_way.append((self._credits.sent_bytes + len(tensor.payload), started / 1e9, tensor))
        for frame, payload in chunks(tensor, self._next_chunk_bytes(), started):
            if not self._credits.under_way_bytes:
                self.link.idle()
            await self._credits.take(len(payload))
            self._chunks_under_way.append((self._credits.sent_bytes, time.monotonic()))
            await self.write(self._outgoing(frame=frame), payload)

    async def receive(self) -> tuple[In, WireTensor | None] | None:
        """What the next message brings besides acks and chunks, and the tensor that it completes; None at the end.

        Raises ProtocolError for anything that the contract forbids, an end in the middle of a tensor included.
        """
        while True:
            packet = await self._read()
            if packet is None:
                if not self._assembler.at_boundary:
                    raise ProtocolError("the stream ended in the middle of a tensor")
                return None
            if isinstance(packet, Damaged):
                raise DamagedError(f"damaged message: {packet.reason}")
            message = packet.message
            if message.HasField("ack"):
                self._acknowledged(message.ack)
                message.ClearField("ack")
            tensor = None
            if message.HasField("frame"):
                tensor = self._assembler.add(message.frame, packet.payload)
                message.ClearField("frame")
                self._acknowledge(len(packet.payload))
            elif packet.payload:
                raise ProtocolError("a payload came without a frame")
            if tensor is not None or message.ByteSize() > 0:
                return message, tensor

    def _acknowledge(self, count: int) -> None:
        self._due = self._ledger.add(count)
        if self._ack_task is None or self._ack_task.done():
            self._ack_task = asyncio.create_task(self._send_ack())

    async def _send_ack(self) -> None:
        await asyncio.sleep(ACK_DELAY_SECONDS)
        if self._due is not None:
            with suppress(Exception):  # the stream has ended; its reader sees why
                await self.write(self._outgoing())

    def _acknowledged(self, ack: Ack) -> None:
        now, written = time.monotonic(), None
        self._credits.acknowledge(ack)
        while self._chunks_under_way and self._chunks_under_way[0][0] <= ack.received_bytes:
            _, written = self._chunks_under_way.popleft()
        if written is not None:
            self.peer_clock.observe(written, now, ack.receiver_nanoseconds)
            self.link.acknowledged(ack.received_bytes, ack.receiver_nanoseconds, now - written)
            window_bytes = self.link.window_bytes or INITIAL_WINDOW_BYTES
            self._credits.window_bytes = max(window_bytes, 2 * self._next_chunk_bytes())
        while self._tensors_under_way and self._tensors_under_way[0][0] <= ack.received_bytes:
            _, started, tensor = self._tensors_under_way.popleft()
            self._on_delivered(tensor, now - started, ack.receiver_nanoseconds)

    def _next_chunk_bytes(self) -> int:
        rate = self.link.bits_per_second
        fitting = FIRST_CHUNK_BYTES if rate is None else int(rate / 8 * CHUNK_SECONDS)
        return min(max(fitting, LEAST_CHUNK_BYTES), self._chunk_bytes)
