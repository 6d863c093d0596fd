"""Bounds on unacknowledged bytes: the receiver's grant, and the least amount that keeps the link full.

Without the second bound a slow link queues seconds of data ahead of everything else that shares it. Bytes are payload
bytes, counted from the beginning of a stream in one direction, so a lost or repeated ack does no harm.
"""

import asyncio
import time
from collections.abc import Callable

from shared.bounds import MOST_CLOCK_NANOSECONDS
from shared.errors import ProtocolError
from shared.transport.stream.sending import LEAST_CHUNK_BYTES, LONGEST_CHUNK
from shared.wire.isthmus.v1.tensor_pb2 import Ack

UNPACED_BYTES = int(LONGEST_CHUNK * LEAST_CHUNK_BYTES)
"""Bytes that may be under way whatever the pace: a tensor of one chunk says little about a link, and that must not slow it
down."""
BURST_SECONDS = 0.004
"""Largest burst, as seconds of the link: timers are late by a millisecond or two."""
LONGEST_PAUSE_SECONDS = 0.1
"""Longest wait of a chunk, so that the stream moves whatever rate was measured."""


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
        waited = await self._pace(count)
        while self.under_way_bytes and count > self.room_bytes:
            waited = True
            self._changed.clear()
            await self._changed.wait()
        self.sent_bytes += count
        self.under_way_bytes += count
        return waited

    async def _pace(self, count: int) -> bool:
        """Wait until the pace allows the next chunk. Returns whether it did not at once."""
        now = time.monotonic()
        is_early = self._next_seconds > now and self.under_way_bytes > UNPACED_BYTES
        if is_early:
            await asyncio.sleep(self._next_seconds - now)
            now = time.monotonic()
        next_seconds = max(self._next_seconds, now - BURST_SECONDS) + count * 8 / self.pace_bits_per_second
        self._next_seconds = min(next_seconds, now + LONGEST_PAUSE_SECONDS)
        return is_early

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
