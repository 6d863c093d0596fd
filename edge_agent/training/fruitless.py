"""Streams that were lost before they brought the run further: how many there may be, and how long to wait between them.

A step that the trainer refuses is tried once more, because what told of the refusal may have been damaged on the way. Then
the refusal is the end of the run: it would come again for ever. A lost link may be lost as often as it likes.
"""

import asyncio
import time

from edge_agent.training.ends import Position
from shared.client.backoff import Backoff
from shared.client.retry import waits
from shared.errors import IsthmusError, ProtocolError, RefusedError, SessionLostError

REFUSALS, FAILURES = 2, 4
"""How often a stream may be refused, or end for any other reason than a lost link, before the run ends by it."""


class Fruitless:
    """Waits grow with every loss at one position. What ends a run is counted until it has got beyond all that was under way
    at the first failure: after going back to a checkpoint it may take many steps to come to the one that fails."""

    def __init__(self) -> None:
        self._beyond: int | None = None
        self._refusals = self._failures = 0
        self._lost_at: tuple[int, int] | None = None
        self._began_seconds = 0.0
        self._backoff: Backoff | None = None

    def count(self, failure: IsthmusError, position: Position | None) -> None:
        """A stream was lost, at this position or with no state in memory. Raises `failure` where no attempt may follow."""
        if not isinstance(failure, ProtocolError) and not is_refusal(failure):
            return
        if position is not None and self._beyond is not None and position.report >= self._beyond:
            self._beyond, self._refusals, self._failures = None, 0, 0
        if position is not None and self._beyond is None:
            self._beyond = position.forward
        self._failures += 1
        self._refusals += is_refusal(failure)
        if self._refusals >= REFUSALS or self._failures >= FAILURES:
            raise failure

    async def wait(self, position: Position | None) -> None:
        """Wait before the next attempt; before the first at this position there is no need to."""
        lost_at = None if position is None else (position.gradient, position.report)
        if lost_at != self._lost_at or self._backoff is None:
            self._lost_at, self._began_seconds, self._backoff = lost_at, time.monotonic(), waits()
        else:
            await asyncio.sleep(self._backoff.next_seconds(time.monotonic() - self._began_seconds))


def is_refusal(failure: IsthmusError) -> bool:
    """Whether the trainer has understood what came and said no to it, as it would again."""
    return isinstance(failure, RefusedError) and not isinstance(failure, SessionLostError)
