"""A stream of tensors, seen from either end: it sends tensors under credits, receives tensors, and deals with acks by itself.

Other messages pass through it unread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Literal, Protocol, TypeVar

from shared.errors import ProtocolError
from shared.transport.stream.channel import PacketChannel
from shared.transport.stream.credits import ReceiveLedger, SendCredits
from shared.transport.stream.framing import Assembler, WireTensor, chunks
from shared.transport.stream.link_rate import LinkRate
from shared.transport.stream.packets import Packet, undamaged
from shared.transport.stream.peer_clock import PeerClock
from shared.transport.stream.round_trip import RoundTrip
from shared.transport.stream.sending import LEAST_CHUNK_BYTES, allowance
from shared.wire.isthmus.v1.tensor_pb2 import Ack, Frame

ACK_DELAY_SECONDS = 0.002
"""How long an ack waits for a message that goes the same way and can carry it. This spares a quick step half its messages."""
ACK_AT_ONCE_BYTES = 256 * 1024
"""With so many bytes unacknowledged an ack does not wait: the sender may be short of credit."""

INITIAL_WINDOW_BYTES = 512 * 1024
"""Bytes that may be under way before the link is known."""
FIRST_CHUNK_BYTES = 64 * 1024
"""The largest chunk before the link is known: small enough that the first tensor measures it."""
LEAST_CHUNKS_OF_A_TENSOR = 4
"""The fewest chunks of a tensor that has to measure the link, because it is not known or may have become slower."""
SUSPICIOUS_SECONDS = 0.01
"""A chunk whose round trip took longer says that the link may have become slower."""


class Envelope(Protocol):
    """A protobuf message that can carry a frame and an ack, whatever else it can say."""

    def __init__(self, *, frame: Frame | None = None) -> None: ...
    @property
    def frame(self) -> Frame: ...
    @property
    def ack(self) -> Ack: ...
    def HasField(self, field_name: Literal["frame", "ack"], /) -> bool: ...
    def ClearField(self, field_name: Literal["frame", "ack"], /) -> None: ...
    def ByteSize(self) -> int: ...


Out = TypeVar("Out", bound=Envelope)
In = TypeVar("In", bound=Envelope)


class Duplex(Generic[Out, In]):
    """One end of a stream.

    outgoing: the type of message that carries this end's frames and acks. on_delivered: told of every tensor that the peer has
    acknowledged, with the seconds from its first byte to the ack of its last, and the nanosecond of the peer's clock at which
    that one arrived. chunk_bytes: the largest chunk; on a slow link chunks are smaller. window_bytes: what the peer may have
    under way.
    """

    def __init__(
        self,
        outgoing: type[Out],
        channel: PacketChannel[Out, In],
        assembler: Assembler,
        chunk_bytes: int,
        window_bytes: int,
        on_delivered: Callable[[WireTensor, float, int], None],
    ) -> None:
        self._outgoing = outgoing
        self._channel = channel
        self._assembler = assembler
        self._chunk_bytes = chunk_bytes
        self._largest_chunk_bytes = min(FIRST_CHUNK_BYTES, chunk_bytes)
        self._writing = asyncio.Lock()
        self._unsent_ack: Ack | None = None
        self._last_ack_bytes, self._last_ack_seconds = 0, 0.0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_task: asyncio.Task[None] | None = None
        self._tensors_under_way: deque[tuple[int, float, WireTensor]] = deque()
        """Each with the count of sent bytes at its end, and the moment at which its sending began."""
        self._chunks_under_way: deque[tuple[int, int, float]] = deque()
        """The count of sent bytes at each one's end, its bytes, and the moment at which it was written."""
        self._on_delivered = on_delivered
        self._credits = SendCredits(INITIAL_WINDOW_BYTES)
        self._ledger = ReceiveLedger(window_bytes)
        self.link = LinkRate()
        self.round_trip = RoundTrip()
        self._link_is_known = False
        self.peer_clock = PeerClock()
        self._quiet_since = time.monotonic()
        """When the peer was heard last, or was first sent something after it had acknowledged everything."""

    @property
    def quiet_seconds(self) -> float:
        """For how long the peer has been silent while it has something to acknowledge; 0 while it has nothing to."""
        return time.monotonic() - self._quiet_since if self._credits.under_way_bytes else 0.0

    async def write(self, message: Out, payload: memoryview | bytes = b"") -> None:
        """Send one message, and with it the ack that waits, if there is one."""
        async with self._writing:
            if self._unsent_ack is not None:
                message.ack.CopyFrom(self._unsent_ack)
                self._last_ack_bytes, self._last_ack_seconds = self._unsent_ack.received_bytes, time.monotonic()
                self._unsent_ack = None
            await self._channel.write(Packet(message, payload))

    async def send(self, tensor: WireTensor) -> None:
        """Send a tensor, chunk by chunk, as credits allow. One call at a time."""
        started = time.monotonic_ns()
        self._tensors_under_way.append((self._credits.sent_bytes + len(tensor.payload), started / 1e9, tensor))
        for frame, payload in chunks(tensor, self._chunk_bytes_of(tensor), started):
            if not self._credits.under_way_bytes:
                self.link.idle()
                self._quiet_since = time.monotonic()
            await self._credits.take(len(payload))
            self._chunks_under_way.append((self._credits.sent_bytes, len(payload), time.monotonic()))
            await self.write(self._outgoing(frame=frame), payload)

    async def receive(self) -> tuple[In, WireTensor | None] | None:
        """The next message that says more than acks and chunks or completes a tensor, and that tensor; None at the end.

        Raises ProtocolError for what the contract forbids, also for an end in the middle of a tensor.
        """
        while True:
            packet = await self._channel.read()
            if packet is None:
                if not self._assembler.between_tensors:
                    raise ProtocolError("the stream ended in the middle of a tensor")
                return None
            self._quiet_since = time.monotonic()
            packet = undamaged(packet)
            message = packet.message
            if message.HasField("ack"):
                self._take_ack(message.ack)
                message.ClearField("ack")
            tensor = None
            if message.HasField("frame"):
                tensor = self._assembler.add(message.frame, packet.payload)
                message.ClearField("frame")
                self._owe_ack(len(packet.payload), more_follows=tensor is None)
            elif packet.payload:
                raise ProtocolError("a payload came without a frame")
            if tensor is not None or message.ByteSize() > 0:
                return message, tensor

    def _owe_ack(self, count: int, *, more_follows: bool) -> None:
        """Count the bytes of a chunk that has come; their ack goes at once, or with the next message, or after a delay."""
        self._unsent_ack = self._ledger.add(count)
        slow = more_follows and time.monotonic() - self._last_ack_seconds > ACK_DELAY_SECONDS
        if slow or self._unsent_ack.received_bytes - self._last_ack_bytes >= ACK_AT_ONCE_BYTES:
            self._ack_soon(0.0)
        else:
            self._ack_soon(ACK_DELAY_SECONDS)

    def _ack_soon(self, delay_seconds: float) -> None:
        if self._ack_timer is not None:
            if delay_seconds > 0:
                return
            self._ack_timer.cancel()
        self._ack_timer = asyncio.get_running_loop().call_later(delay_seconds, self._start_ack)

    def _start_ack(self) -> None:
        self._ack_timer = None
        if self._unsent_ack is not None:
            self._ack_task = asyncio.create_task(self._send_ack())

    async def _send_ack(self) -> None:
        with suppress(Exception):  # the stream has ended, and its reader sees why
            if self._unsent_ack is not None:
                await self.write(self._outgoing())

    def _take_ack(self, ack: Ack) -> None:
        """The peer has acknowledged what it has: learn what the link carries, and report the tensors that are delivered."""
        now, written, chunk_bytes = time.monotonic(), None, 0
        self._credits.acknowledge(ack)
        while self._chunks_under_way and self._chunks_under_way[0][0] <= ack.received_bytes:
            _, chunk_bytes, written = self._chunks_under_way.popleft()
        if written is not None:
            self.peer_clock.observe(written, now, ack.receiver_nanoseconds)
            self._link_is_known = self.link.bits_per_second is not None and now - written < SUSPICIOUS_SECONDS
            self.link.acknowledged(ack.received_bytes, ack.receiver_nanoseconds, written, now)
            unqueued_seconds = now - written - self.link.queue_seconds
            self.round_trip.observe(unqueued_seconds, chunk_bytes, self.link.bits_per_second, now)
            self._allow(ack.received_bytes)
        while self._tensors_under_way and self._tensors_under_way[0][0] <= ack.received_bytes:
            _, started, tensor = self._tensors_under_way.popleft()
            self._on_delivered(tensor, now - started, ack.receiver_nanoseconds)

    def _chunk_bytes_of(self, tensor: WireTensor) -> int:
        if self._link_is_known:
            return self._largest_chunk_bytes
        a_share = -(-len(tensor.payload) // LEAST_CHUNKS_OF_A_TENSOR)
        return min(max(a_share, LEAST_CHUNK_BYTES), self._largest_chunk_bytes)

    def _allow(self, received_bytes: int) -> None:
        allowed = allowance(self.link, self._chunk_bytes)
        if allowed is None:
            # What has arrived is what the link can carry at least.
            self._credits.window_bytes = INITIAL_WINDOW_BYTES + received_bytes
        else:
            self._largest_chunk_bytes = allowed.chunk_bytes
            self._credits.window_bytes = allowed.window_bytes
            self._credits.pace_bits_per_second = allowed.bits_per_second
