"""Pace of sending over a measured link: the size of a chunk, the bytes under way, the rate of writing.

The sender keeps a queue of a few chunks in front of the link. While the sender is late the link lives on this queue,
and all other traffic of the link waits behind it. Pure: from measurements to limits.
"""

from dataclasses import dataclass

from shared.transport.stream.link_rate import LinkRate

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
