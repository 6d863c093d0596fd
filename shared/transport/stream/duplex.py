"""A stream of tensors, seen from either end: it sends tensors under credits, receives tensors, and deals with acks by itself.

Other messages pass through it unread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, Literal, Protocol, TypeVar

from shared.errors import ProtocolError
from shared.transport.stream.credits import LEAST_CHUNK_BYTES, LONGEST_CHUNK, ReceiveLedger, SendCredits, allowance
from shared.transport.stream.framing import Assembler, WireTensor, messages, payloads
from shared.transport.stream.link_estimate import LinkEstimate, PeerClock
from shared.transport.stream.packets import Packet, PacketChannel, undamaged
from shared.transport.stream.reminder import Reminder
from shared.wire.isthmus.v1.tensor_pb2 import Ack, Frame

ACK_DELAY_SECONDS = 0.2
"""Longest time that an ack waits for a message of the same direction that can carry it, unless the sender waits for the
ack. This spares a step half its messages, on a weak device too, whose steps are long. The ack says how long it has
waited (as QUIC's does, RFC 9000)."""
MEASURED_SECONDS = 0.002
"""A chunk of a tensor that takes longer on the link is to be acknowledged at once: a message more costs little then, and more
of the link is seen."""
ASKED_TIMES = 8
"""Largest number of requests for an ack in one window's worth of bytes, if nothing else asks for one."""

INITIAL_WINDOW_BYTES = 512 * 1024
"""Bytes that may be under way before the link is known."""
FIRST_CHUNK_BYTES = 64 * 1024
"""The largest chunk before the link is known: small enough that the first tensor measures it."""
LEAST_CHUNKS_OF_A_TENSOR = 4
"""The fewest chunks of a tensor that has to measure the link, because it is not known or may have become slower."""
LEAST_FIRST_CHUNK_BYTES = 8 * 1024
"""The smallest chunk that measures a link of which nothing is known; less says little."""


class Frames(Protocol):
    """The frames of a message, one after the other."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Frame: ...
    def __iter__(self) -> Iterator[Frame]: ...
    def extend(self, frames: Iterable[Frame], /) -> None: ...


class Envelope(Protocol):
    """A protobuf message that can carry frames and an ack, besides its other fields."""

    def __init__(self, *, frames: Iterable[Frame] | None = None) -> None: ...
    @property
    def frames(self) -> Frames: ...
    @property
    def ack(self) -> Ack: ...
    def HasField(self, field_name: Literal["ack"], /) -> bool: ...
    def ClearField(self, field_name: Literal["frames", "ack"], /) -> None: ...
    def ByteSize(self) -> int: ...


Out = TypeVar("Out", bound=Envelope)
In = TypeVar("In", bound=Envelope)


class Duplex(Generic[Out, In]):
    """One end of a stream.

    outgoing: the type of message that carries this end's frames and acks. note_delivered: told every tensor that the
    peer has acknowledged, with the seconds from its first byte to the ack of its last, and the nanosecond of the peer's
    clock at which that one arrived. largest_chunk_bytes: on a slow link chunks are smaller. window_bytes: limit of the
    peer's bytes under way.
    """

    def __init__(
        self,
        outgoing: type[Out],
        channel: PacketChannel[Out, In],
        assembler: Assembler,
        largest_chunk_bytes: int,
        window_bytes: int,
        note_delivered: Callable[[WireTensor, float, int], None],
    ) -> None:
        self._outgoing = outgoing
        self._channel = channel
        self._assembler = assembler
        self._largest_chunk_bytes = largest_chunk_bytes
        self._chunk_bytes = min(FIRST_CHUNK_BYTES, largest_chunk_bytes)
        """Length of a chunk that suits the link."""
        self._writing = asyncio.Lock()
        self._unsent_ack: Ack | None = None
        self._ack_reminder = Reminder(ACK_DELAY_SECONDS, self._start_ack)
        self._ack_task: asyncio.Task[None] | None = None
        self._tensors_under_way: deque[tuple[int, float, WireTensor]] = deque()
        """Each with the count of sent bytes at its end, and the moment at which its sending began."""
        self._chunks_under_way: deque[tuple[int, int, float]] = deque()
        """The count of sent bytes at each one's end, its bytes, and the moment at which it was written."""
        self._note_delivered = note_delivered
        self._credits = SendCredits(INITIAL_WINDOW_BYTES)
        self._asked_bytes = 0
        """The count of sent bytes at the end of the last chunk that asked for an ack."""
        self._ledger = ReceiveLedger(window_bytes)
        self.estimate = LinkEstimate()
        self.peer_clock = PeerClock()
        self._quiet_since = time.monotonic()
        """Time of the peer's last message, or of the first send after it had acknowledged everything."""

    @property
    def quiet_seconds(self) -> float:
        """For how long the peer has been silent while it has something to acknowledge; 0 while it has nothing to."""
        return time.monotonic() - self._quiet_since if self._credits.under_way_bytes else 0.0

    @property
    def carried_bytes(self) -> int:
        """Count the payload bytes that have come, and those that the peer has acknowledged."""
        return self._ledger.received_bytes + self._credits.acknowledged_bytes

    async def write(self, message: Out, *payload: memoryview) -> None:
        """Send one message, and with it the ack that waits, if there is one."""
        async with self._writing:
            if self._unsent_ack is not None:
                self._ledger.release(self._unsent_ack, message.ack)
                self._unsent_ack = None
                self._ack_reminder.end()
            await self._channel.write(Packet(message, payload[0] if payload else b"", payload[1:]))

    async def send(self, *tensors: WireTensor, message: Out | None = None) -> None:
        """Send tensors, chunk by chunk, as credits allow. Small ones go in one message. One call at a time.

        message: goes with the first chunk.
        """
        first, *others = tensors
        if self.estimate.round_trip.is_due(len(first.payload), time.monotonic()):
            await self._send((first,), message, measures=True)
            tensors, message = tuple(others), None
        if tensors:
            total = sum(len(tensor.payload) for tensor in tensors)
            measures = total > LEAST_FIRST_CHUNK_BYTES and self.estimate.begin_measurement(time.monotonic())
            await self._send(tensors, message, measures=measures)

    async def _send(self, tensors: Sequence[WireTensor], message: Out | None, *, measures: bool) -> None:
        """measures: whether every chunk is to be acknowledged at once."""
        started = time.monotonic_ns()
        ends = self._credits.sent_bytes
        for tensor in tensors:
            ends += len(tensor.payload)
            self._tensors_under_way.append((ends, started / 1e9, tensor))
        for parts in messages(
            tensors, self._chunk_bytes_of(ends - self._credits.sent_bytes, measures=measures), started
        ):
            if not self._credits.under_way_bytes:
                self.estimate.rate.idle()
                self._quiet_since = time.monotonic()
            frames, payload = zip(*parts, strict=True)
            count = sum(map(len, payload))
            # If the link limits this, a higher rate should show soon.
            held_up = await self._credits.take(count)
            more_follows = self._credits.sent_bytes < ends
            frames[-1].wants_ack = measures or held_up or self._waits_for_ack(count, more_follows=more_follows)
            if frames[-1].wants_ack:
                self._asked_bytes = self._credits.sent_bytes
            message = message or self._outgoing()
            message.frames.extend(frames)
            self._chunks_under_way.append((self._credits.sent_bytes, count, time.monotonic()))
            await self.write(message, *payload)
            message = None

    def _waits_for_ack(self, count: int, *, more_follows: bool) -> bool:
        """Tell whether `count` bytes need their ack at once: for room, or because one more message costs little beside them."""
        is_long = more_follows and count * 8 > MEASURED_SECONDS * (self.estimate.rate.bits_per_second or float("inf"))
        room, under_way = self._credits.room_bytes, self._credits.under_way_bytes
        unasked = self._credits.sent_bytes - self._asked_bytes
        # On a long way what comes then makes room before there is none, and a few times a round trip are enough.
        makes_room = under_way >= room and unasked * ASKED_TIMES >= room + under_way
        return is_long or makes_room or self.estimate.rate.draining or room < LONGEST_CHUNK * self._chunk_bytes

    async def receive(self) -> tuple[In, Sequence[WireTensor]] | None:
        """Return the next message with more than acks and chunks, or that completes tensors, and these tensors; None at
        the end.

        Raises ProtocolError for a breach of the contract, also for an end in the middle of a tensor.
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
            tensors: Sequence[WireTensor] = ()
            if len(message.frames):
                tensors = self._take_frames(message, packet.payload)
            elif packet.payload:
                raise ProtocolError("a payload came without a frame")
            if tensors or message.ByteSize() > 0:
                return message, tensors

    def _take_frames(self, message: In, payload: memoryview | bytes) -> Sequence[WireTensor]:
        """Take the chunks of a message; returns the tensors that they complete."""
        wholes, wants_ack = [], False
        for frame, part in payloads(message.frames, payload):
            wants_ack = wants_ack or frame.wants_ack
            if (tensor := self._assembler.add(frame, part)) is not None:
                wholes.append(tensor)
        message.ClearField("frames")
        # Of all bytes so far; it goes at once, or with the next message, or after a delay.
        self._unsent_ack = self._ledger.add(len(payload))
        if wants_ack:
            self._start_ack()
        else:
            self._ack_reminder.begin()
        return wholes

    def _start_ack(self) -> None:
        if self._ack_task is None or self._ack_task.done():
            self._ack_task = asyncio.create_task(self._send_ack())

    async def _send_ack(self) -> None:
        with suppress(Exception):  # the stream has ended, and its reader sees why
            while self._unsent_ack is not None:
                await self.write(self._outgoing())

    def _take_ack(self, ack: Ack) -> None:
        """Take an ack of the peer: learn the link's rate from it, and report the delivered tensors."""
        now, written, chunk_bytes = time.monotonic(), None, 0
        self._credits.acknowledge(ack)
        while self._chunks_under_way and self._chunks_under_way[0][0] <= ack.received_bytes:
            _, chunk_bytes, written = self._chunks_under_way.popleft()
        if written is not None:
            # As if it had come when the bytes did: it may have waited for a message to go with.
            now = max(now - ack.held_nanoseconds / 1e9, written)
            self.peer_clock.observe(written, now, ack.receiver_nanoseconds)
            self.estimate.acknowledged(ack.received_bytes, ack.receiver_nanoseconds, written, now, chunk_bytes)
            self._allow(ack.received_bytes)
        while self._tensors_under_way and self._tensors_under_way[0][0] <= ack.received_bytes:
            _, started, tensor = self._tensors_under_way.popleft()
            self._note_delivered(tensor, now - started, ack.receiver_nanoseconds)

    def _chunk_bytes_of(self, count: int, *, measures: bool) -> int:
        """Return the length of each chunk of `count` bytes. Where none measures, all are equal: a short one would cost
        as much."""
        if not measures:
            chunks = round(count / self._chunk_bytes) or 1
            return min(max(-(-count // chunks), 1), self._largest_chunk_bytes)
        least = LEAST_FIRST_CHUNK_BYTES if self.estimate.rate.bits_per_second is None else LEAST_CHUNK_BYTES
        return min(max(-(-count // LEAST_CHUNKS_OF_A_TENSOR), least), self._chunk_bytes)

    def _allow(self, received_bytes: int) -> None:
        allowed = allowance(self.estimate.rate, self._largest_chunk_bytes)
        if allowed is None:
            # The link carries at least what has arrived.
            self._credits.window_bytes = INITIAL_WINDOW_BYTES + received_bytes
        else:
            self._chunk_bytes = allowed.chunk_bytes
            self._credits.window_bytes = allowed.window_bytes
            self._credits.pace_bits_per_second = allowed.bits_per_second
