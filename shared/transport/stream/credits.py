"""Bounds on unacknowledged bytes: the receiver's grant, and the least amount that keeps the link full, at the link's pace.

Without the second bound a slow link queues seconds of data ahead of everything else that shares it. The sender keeps a queue of
a few chunks in front of the link: while it is late the link lives on this queue, and all other traffic waits behind it. Bytes
are payload bytes, counted from the beginning of a stream in one direction, so a lost or repeated ack does no harm.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from shared.bounds import MOST_CLOCK_NANOSECONDS
from shared.errors import ProtocolError
from shared.transport.stream.link_rate import LinkRate
from shared.wire.isthmus.v1.tensor_pb2 import Ack

LEAST_CHUNK_BYTES = 32 * 1024
"""Smaller chunks cost more than they bring: with half of this, a link of 10 Mbit/s lost 0.4 % to headers."""
LONGEST_CHUNK = 1.5
"""Largest factor by which a chunk may exceed the length that suits the link, where that spares one chunk."""
CHUNK_SECONDS = 0.015
"""Time of a chunk on the link, and so the interval of measurements."""
QUEUE_SECONDS = 0.030
"""The queue that is kept, with the chunk that was written last."""
QUEUE_CHUNKS = 2
"""The shortest queue: a chunk that is on its way, and one behind it."""
LEAST_GAIN, MOST_GAIN = 0.9, 1.5
"""Bounds on the sender's rate, as factors of the link's. The first bounds how soon a queue shrinks, the second
how soon a faster link is noticed."""
DRAINED = 0.5
"""Share of the link's bytes in one round trip that is under way while the queue runs dry."""

UNPACED_BYTES = int(LONGEST_CHUNK * LEAST_CHUNK_BYTES)
"""Bytes that may be under way whatever the pace: a tensor of one chunk says little about a link, and that must not slow it
down."""
BURST_SECONDS = 0.004
"""Largest burst, as seconds of the link: timers are late by a millisecond or two."""
LONGEST_PAUSE_SECONDS = 0.1
"""Longest wait of a chunk, so that the stream moves whatever rate was measured."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of the sender. chunk_bytes: length of a piece of a tensor. window_bytes: bytes that may be under way.
    bits_per_second: rate of writing once more than a little is under way."""

    chunk_bytes: int
    window_bytes: int
    bits_per_second: float


def allowance(link: LinkRate, largest_chunk_bytes: int) -> Allowance | None:
    """Return the allowance that suits the link now; None before its rate is known.

    The shorter the queue is than the one that is kept, the faster; without any, half as much again is written and under
    way as the link is known to carry, so that a link that has become faster shows it. Writing at the link's pace, and not
    whenever an ack comes, is for traffic in both directions: acks that have waited in the queue of the other direction
    come in bursts, and what they release would be a burst again (Zhang, Shenker and Clark 1991).
    """
    if link.bits_per_second is None:
        return None
    byte_rate = link.bits_per_second / 8
    chunk = min(max(int(byte_rate * CHUNK_SECONDS), LEAST_CHUNK_BYTES), largest_chunk_bytes)
    carried, queue = byte_rate * link.loop_seconds, max(byte_rate * QUEUE_SECONDS, QUEUE_CHUNKS * chunk)
    gain = min(max(2 - byte_rate * link.queue_seconds / queue, LEAST_GAIN), MOST_GAIN)
    # The last chunk may begin within the window and end beyond it. While it drains, a window smaller than a chunk lets
    # one through at a time.
    window = DRAINED * carried if link.draining else max(gain, 1.0) * carried + queue + chunk
    return Allowance(chunk, int(window), gain * link.bits_per_second)


class SendCredits:
    """The sender's side: waits until the receiver and the link have room."""

    def __init__(self, window_bytes: int) -> None:
        """window_bytes: limit of the bytes under way. The owner changes it, and the pace, as it learns the link's rate."""
        self.sent_bytes = 0
        self.under_way_bytes = 0
        """Sent and not acknowledged."""
        self.window_bytes = window_bytes
        self.pace_bits_per_second = float("inf")
        self._next_seconds = 0.0
        self._receiver_nanoseconds = 0
        """Time of the last acknowledged arrival, by the peer's clock."""
        self._granted_bytes = window_bytes
        self._changed = asyncio.Event()

    @property
    def acknowledged_bytes(self) -> int:
        """Count the bytes that have arrived, as the peer has said."""
        return self.sent_bytes - self.under_way_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be sent before an ack has to come; none where it is negative."""
        return min(self.window_bytes, self._granted_bytes) - self.under_way_bytes

    async def take(self, count: int) -> bool:
        """Wait for the turn of `count` more bytes and for room for them, and count them as sent. Returns whether it waited.

        A chunk larger than the whole credit goes when nothing else is under way; so no setting can stop a stream.
        """
        now = time.monotonic()
        waited = self._next_seconds > now and self.under_way_bytes > UNPACED_BYTES
        if waited:
            await asyncio.sleep(self._next_seconds - now)
            now = time.monotonic()
        next_seconds = max(self._next_seconds, now - BURST_SECONDS) + count * 8 / self.pace_bits_per_second
        self._next_seconds = min(next_seconds, now + LONGEST_PAUSE_SECONDS)
        while self.under_way_bytes and count > self.room_bytes:
            waited = True
            self._changed.clear()
            await self._changed.wait()
        self.sent_bytes += count
        self.under_way_bytes += count
        return waited

    def acknowledge(self, ack: Ack) -> None:
        """Take an ack. Raises ProtocolError for more than was sent, less than an ack before it, or a clock that goes back."""
        under_way_bytes = self.sent_bytes - ack.received_bytes
        if not 0 <= under_way_bytes <= self.under_way_bytes:
            raise ProtocolError(
                f"the peer acknowledges {ack.received_bytes} bytes of {self.sent_bytes} sent, after {self.acknowledged_bytes}"
            )
        if not self._receiver_nanoseconds <= ack.receiver_nanoseconds <= MOST_CLOCK_NANOSECONDS:
            raise ProtocolError(
                f"the peer's clock is at {ack.receiver_nanoseconds} nanoseconds, after {self._receiver_nanoseconds}"
            )
        self._receiver_nanoseconds = ack.receiver_nanoseconds
        self.under_way_bytes = under_way_bytes
        self._granted_bytes = ack.credit_bytes
        self._changed.set()


class ReceiveLedger:
    """The receiver's side: it counts arrivals, and makes an ack for each chunk.

    An ack covers all bytes before it, so the receiver may leave out an ack that another follows soon.
    """

    def __init__(self, credit_bytes: int, monotonic_nanoseconds: Callable[[], int] = time.monotonic_ns) -> None:
        self.received_bytes = 0
        self._credit_bytes = credit_bytes
        self._now = monotonic_nanoseconds

    def add(self, count: int) -> Ack:
        """Count a chunk of so many payload bytes and return its ack."""
        self.received_bytes += count
        return Ack(
            received_bytes=self.received_bytes, receiver_nanoseconds=self._now(), credit_bytes=self._credit_bytes
        )

    def release(self, ack: Ack, message_ack: Ack) -> None:
        """Write an ack into a message that goes now, with how long it has waited for that."""
        message_ack.CopyFrom(ack)
        message_ack.held_nanoseconds = self._now() - ack.receiver_nanoseconds
