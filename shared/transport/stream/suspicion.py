"""Suspicion that a link has become slower: where each tensor is one chunk its rate is not seen, but late acks are."""

from collections import deque
from statistics import median

LATE_SECONDS, LATE_TIMES = 0.01, 2.0
"""Bound on the seconds of an ack, beyond which its chunk is late: the first, plus the second times the usual seconds."""
IN_A_ROW = 2
"""Number of late chunks that make a suspicion: one may have come to a peer whose processor was busy."""
USUAL = 16
"""Number of latest chunks whose median is the usual time of an ack besides the chunk's own. A weak device is always late."""


class Suspicion:
    """Used by the sender of one direction of a stream."""

    def __init__(self) -> None:
        self._besides_seconds: deque[float] = deque(maxlen=USUAL)
        self._late = 0

    @property
    def is_raised(self) -> bool:
        """Tell whether the link had better be measured."""
        return self._late >= IN_A_ROW

    def note(self, ack_seconds: float, carried_seconds: float) -> None:
        """A chunk was acknowledged after so many seconds, of which the link takes `carried_seconds` if it is as it was."""
        besides = ack_seconds - carried_seconds
        usual = median(self._besides_seconds) if self._besides_seconds else besides
        self._besides_seconds.append(besides)
        is_late = ack_seconds > LATE_SECONDS + LATE_TIMES * (max(usual, 0.0) + carried_seconds)
        self._late = self._late + 1 if is_late else 0
