"""How long a queue in front of the link is: how much longer a chunk was on its way than the quickest one.

One-way delays by two machines' clocks, of which only the differences mean anything (LEDBAT, RFC 6817), so a slow way
back does not count.
"""

from dataclasses import dataclass

BASE_SECONDS = 20.0
"""How long the quickest chunk is held up as an example. Then the queue is let run dry once, because its way may have had a
queue in it, and because routes and clocks change."""
AGREEMENT_SECONDS = 0.002
"""A chunk that is less than this behind the quickest has met no queue either."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk's way: the delay from its write to the arrival of its last byte, and what the link then took for a byte.

    A long chunk arrives later than a short one also without a queue.
    """

    delay_seconds: float
    chunk_bytes: int
    byte_seconds: float

    def waited_seconds(self, byte_seconds: float) -> float:
        """The delay without the chunk's own length, on a link that is now known to take so long for a byte."""
        return self.delay_seconds - self.chunk_bytes * min(byte_seconds, self.byte_seconds)


class QueueDelay:
    """The sender's view of one direction of one stream."""

    def __init__(self) -> None:
        self.draining = False
        """Whether the sender should have less under way, until another chunk has met no queue."""
        self._quickest: Passage | None = None
        self._quickest_while_draining: Passage | None = None
        self._believed_until = float("inf")
        self._drain_until = float("inf")

    def observe(self, passage: Passage, now_seconds: float, round_trip_seconds: float) -> float:
        """The queue that a chunk has met, in seconds.

        round_trip_seconds: how long it takes until a change of what the sender does is seen.
        """
        if self._quickest is None:
            self._believe(passage, now_seconds)
        behind = self._behind(passage)
        if not self.draining and now_seconds > self._believed_until and behind > 0:
            self.draining, self._quickest_while_draining = True, None
            self._drain_until = now_seconds + 2 * round_trip_seconds
        if self.draining:
            so_far = self._quickest_while_draining or passage
            byte_seconds = passage.byte_seconds
            self._quickest_while_draining = min(so_far, passage, key=lambda way: way.waited_seconds(byte_seconds))
            if behind <= AGREEMENT_SECONDS or now_seconds > self._drain_until:
                self._believe(self._quickest_while_draining, now_seconds)
        elif behind <= 0:
            self._believe(passage, now_seconds)
        return max(self._behind(passage), 0.0)

    def _behind(self, passage: Passage) -> float:
        assert self._quickest is not None
        now = passage.byte_seconds
        return passage.waited_seconds(now) - self._quickest.waited_seconds(now)

    def _believe(self, quickest: Passage, now_seconds: float) -> None:
        self.draining = False
        self._quickest = quickest
        self._believed_until = now_seconds + BASE_SECONDS
