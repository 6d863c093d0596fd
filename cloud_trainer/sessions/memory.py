"""What one session holds of the trainer's memory, counted at its worst from opening to closing.

Weights and activations, batches in flight with their labels and gradients, and blocks on their way in. Each
claim that would make it more than a session may have is refused before the memory is taken. Knows nothing of tensors.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import grpc

from cloud_trainer.sessions.limits import Limits
from shared.transport.rpc.status import StatusError

MOST_COPYING = 8
"""Calls of one session at one time that copy blocks, to send or to measure them. An edge has four under way, and those of
a connection that was lost are held until that is noticed."""
COPIES = 2
"""A tensor is held as it came and as it was decoded, and a feature's gradient is as large as the feature."""
_RETRY_SECONDS = 10.0
"""When an upload or a copy that hangs on a lost connection may have been given up."""


class Batches(NamedTuple):
    """What may be in flight of a session."""

    in_flight: int
    """How many batches."""
    each_bytes: int
    """What each takes at its worst, in all its copies, without its labels."""

    @property
    def total_bytes(self) -> int:
        """What all of them take."""
        return self.in_flight * self.each_bytes


class SessionMemory:
    """One session's memory. Used on the event loop and, while that waits for the answer, on a thread that computes for it."""

    def __init__(self, limits: Limits, model_bytes: int, state_copy_bytes: int, most_uploading_bytes: int) -> None:
        """model_bytes: of training, with a second copy of the state, of state_copy_bytes, for blocks that arrive."""
        self._limits = limits
        self._model_bytes = model_bytes
        self._state_copy_bytes = state_copy_bytes
        self._most_uploading_bytes = most_uploading_bytes
        self._label_bytes = 0
        self._copying = 0
        self._uploading_bytes = 0
        self._aside_bytes = 0

    def check(self, batches: Batches) -> None:
        """Refuse batches with which the session would hold too much. Raises StatusError."""
        self._limits.check_memory(self._total(batches))

    def permit(self, staleness: int, codecs: Iterable[str], batches: Batches) -> None:
        """Refuse what the operator does not let the session have: its K, its codecs, the memory that its batches take.

        Raises ProtocolError, ConfigError for an unknown codec, or StatusError.
        """
        self._limits.check_staleness(staleness, codecs)
        self.check(batches)

    def max_staleness(self, each_bytes: int) -> int:
        """The largest K for which there is memory with batches of so many bytes, and the limit of all sessions at most."""
        each = self._of_each(each_bytes)
        room = self._limits.session_bytes - self._total(Batches(1, each_bytes))
        return min(self._limits.staleness, max(room, 0) // each if each else self._limits.staleness)

    def take_labels(self, count: int, batches: Batches) -> None:
        """Count labels of so many bytes for every batch in flight, if none were larger so far. Raises StatusError."""
        before = self._label_bytes
        self._label_bytes = max(before, count)
        try:
            self.check(batches)
        except StatusError:
            self._label_bytes = before
            raise

    @contextmanager
    def copying(self) -> Iterator[None]:
        """A call copies blocks, and holds the copy for as long as its caller takes. Raises StatusError."""
        _check_limit(self._copying, MOST_COPYING, "calls that copy blocks")
        self._copying += 1
        try:
            yield
        finally:
            self._copying -= 1

    def begin_upload(self, count: int, batches: Batches) -> None:
        """Begin an upload of so many bytes of a block. Raises StatusError where too many are on their way already."""
        if self._uploading_bytes + count > self._most_uploading_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._uploading_bytes} bytes of blocks are on their way to this session already; {count} more are too "
                f"many at one time (limit {self._most_uploading_bytes})",
                _RETRY_SECONDS,
            )
        self._uploading_bytes += count
        try:
            self.check(batches)
        except StatusError:
            self._uploading_bytes -= count
            raise

    def end_upload(self, count: int) -> None:
        """End an upload of so many bytes, whole or not."""
        self._uploading_bytes -= count

    def set_aside(self, count: int) -> None:
        """Set how many bytes the blocks take that wait for the cut to move."""
        self._aside_bytes = count

    def _total(self, batches: Batches) -> int:
        blocks = max(self._uploading_bytes + self._aside_bytes - self._state_copy_bytes, 0)
        return self._model_bytes + batches.in_flight * self._of_each(batches.each_bytes) + blocks

    def _of_each(self, each_bytes: int) -> int:
        return each_bytes + COPIES * self._label_bytes


def _check_limit(under_way: int, limit: int, what: str) -> None:
    """Raises StatusError where as many calls as may be are under way already."""
    if under_way >= limit:
        raise StatusError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{limit} {what} of this session are under way already; that is the limit",
            _RETRY_SECONDS,
        )
