"""The trainer's memory that one session takes, counted at its worst from opening to closing.

It is weights and activations, batches in flight with their labels and gradients, what metrics keep, and blocks that arrive
and leave. Each claim beyond the session's limit is refused before the memory is taken. Knows nothing of tensors.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import grpc

from cloud_trainer.sessions.limits import Limits
from shared.transport.rpc.status import StatusError

MOST_COPYING = 8
"""Largest number of simultaneous copies of one session's blocks, to send, measure or store. An edge has four under way
beside a checkpoint, and those of a lost connection are held until the loss is noticed."""
COPIES = 2
"""Copies of one crossing tensor: as it arrived and as it was decoded. A feature's gradient is as large as the feature."""
UPLOADS = 2
"""Uploads of a block, and of its frozen weights, that may be under way at one time: a lost upload is held while it is
repeated."""
_RETRY_SECONDS = 10.0
"""Retry time: until then, an upload or a copy on a lost connection may be given up."""


class Batches(NamedTuple):
    """The batches of a session that may be in flight."""

    in_flight: int
    """Number of batches."""
    each_bytes: int
    """Bytes of each batch at its worst, all its copies included, its labels excluded."""
    labels_ahead: int = 0
    """Number of batches of which labels have come before they are in flight."""
    ahead_bytes: int = 0
    """Bytes of the samples that have come before, and of what is kept for steps that are computed before; all their copies
    included, labels excluded."""


class Uses(NamedTuple):
    """The batches of a placement in training and in evaluation. A session needs the room for both, one after the other."""

    trained: Batches
    """Batches in flight in training."""
    evaluated: Batches
    """Batches in flight in an evaluation."""


_NO_BATCHES = Uses(Batches(0, 0), Batches(0, 0))


class SessionMemory:
    """One session's memory. Used on the event loop and, while that waits for the answer, on a thread that computes for it."""

    def __init__(
        self,
        limits: Limits,
        model_bytes: int,
        block_bytes: Sequence[int],
        frozen_bytes: int = 0,
        metric_bytes: int = 0,
    ) -> None:
        """model_bytes: for training, including a second copy of states and frozen weights for blocks that arrive.
        block_bytes: the state of each. frozen_bytes: the frozen weights of all, as they arrive. metric_bytes: the most that
        the metrics of an evaluation keep."""
        self.uses = _NO_BATCHES
        """Batches of the placement in force; none before there is one."""
        self._limits = limits
        self._metric_bytes = metric_bytes
        self._model_bytes = model_bytes
        self._block_bytes = block_bytes
        self._arriving_bytes = sum(block_bytes) + frozen_bytes
        """Bytes of all that can arrive, each once."""
        self._label_bytes = 0
        self._copying = 0
        self._copied_bytes = 0
        self._uploading_bytes = 0
        self._aside_bytes = 0

    def check(self, uses: Uses) -> None:
        """Refuse batches that would take too much, in training or in an evaluation. Raises StatusError."""
        self._limits.check_uses(self._total(uses.trained), self._total(uses.evaluated) + self._metric_bytes)

    @property
    def max_staleness(self) -> int:
        """Return the largest K for which memory holds the batches of training. The limit of all sessions bounds it."""
        batches = self.uses.trained
        each = self._of_each(batches.each_bytes)
        room = self._limits.session_bytes - self._total(batches._replace(in_flight=1))
        return min(self._limits.staleness, max(room, 0) // each if each else self._limits.staleness)

    def take_labels(self, count: int) -> None:
        """Count labels of so many bytes for every batch in flight, unless larger ones were counted. Raises StatusError."""
        before = self._label_bytes
        self._label_bytes = max(before, count)
        try:
            self.check(self.uses)
        except StatusError:
            self._label_bytes = before
            raise

    @contextmanager
    def copying(self, blocks: Iterable[int]) -> Iterator[None]:
        """Count copies of blocks of the model while the body runs. Raises StatusError."""
        _check_limit(self._copying, MOST_COPYING, "copies of blocks")
        count = sum(self._block_bytes[block] for block in blocks)
        self._check_room(count)
        self._copying += 1
        self._copied_bytes += count
        try:
            yield
        finally:
            self._copying -= 1
            self._copied_bytes -= count

    def begin_upload(self, count: int) -> None:
        """Begin an upload of so many bytes of a block, or of its frozen weights. Raises StatusError if too many are under
        way already."""
        most_bytes = UPLOADS * self._arriving_bytes
        if self._uploading_bytes + count > most_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._uploading_bytes} bytes of blocks are on their way to this session already; {count} more are too "
                f"many at one time (limit {most_bytes})",
                _RETRY_SECONDS if count <= most_bytes else None,
            )
        self._check_room(count)
        self._uploading_bytes += count

    def end_upload(self, count: int) -> None:
        """End an upload of so many bytes, whole or not."""
        self._uploading_bytes -= count

    def set_aside(self, count: int) -> None:
        """Set the bytes of the blocks that wait for another placement."""
        self._aside_bytes = count

    def _check_room(self, count: int) -> None:
        """Refuse additional bytes of blocks beyond the limit. Raises StatusError."""
        moving_bytes = self._moving_bytes
        trained, evaluated = map(self._at_rest, self.uses)
        needed_bytes = max(trained, evaluated + self._metric_bytes)
        most_bytes = self._arriving_bytes + self._limits.session_bytes - needed_bytes
        room = most_bytes - moving_bytes
        if count > room:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{count} bytes of blocks are to be sent or taken; beside its batches in flight, and {moving_bytes} bytes of "
                f"blocks that are on their way already, the session has room for {max(room, 0)} (server.max_session_bytes)",
                _RETRY_SECONDS if count <= most_bytes else None,
            )

    def _total(self, batches: Batches) -> int:
        """Count all that a session takes with such batches in flight."""
        return self._at_rest(batches) + max(self._moving_bytes - self._arriving_bytes, 0)

    def _at_rest(self, batches: Batches) -> int:
        """Count the same without the blocks that move."""
        ahead = batches.ahead_bytes + batches.labels_ahead * COPIES * self._label_bytes
        return self._model_bytes + batches.in_flight * self._of_each(batches.each_bytes) + ahead

    @property
    def _moving_bytes(self) -> int:
        return self._uploading_bytes + self._aside_bytes + self._copied_bytes

    def _of_each(self, each_bytes: int) -> int:
        return each_bytes + COPIES * self._label_bytes


def _check_limit(under_way: int, limit: int, what: str) -> None:
    """Refuse a call beyond the limit of simultaneous calls. Raises StatusError."""
    if under_way >= limit:
        raise StatusError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{limit} {what} of this session are under way already; that is the limit",
            _RETRY_SECONDS,
        )
