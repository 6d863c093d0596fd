"""Waiting for a trainer that cannot be reached: attempts with full jitter between them, as long as the user allows."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from shared.backoff import Backoff
from shared.errors import BusyError, UnreachableError

_log = structlog.get_logger(__name__)
T = TypeVar("T")

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.05, 0.5
"""Ceilings of the waits. The longest decides how soon a link that is back is noticed, together with gRPC's own waits
(`shared/transport/options.py`)."""


def _ignore() -> None:
    pass


class Endurance:
    """Of one run. `away`: whether it is waiting just now."""

    def __init__(self, give_up_seconds: float | None, on_change: Callable[[], None] = _ignore) -> None:
        """give_up_seconds: None never gives up. on_change: told when `away` changes."""
        self.give_up_seconds = give_up_seconds
        self.away = False
        self._on_change = on_change

    async def through(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns, tried again for as long as it raises UnreachableError or BusyError.

        Raises that after the time allowed, and any other at once. `attempt` must be safe to repeat.
        """
        began, backoff = time.monotonic(), Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        while True:
            try:
                result = await attempt()
            except (UnreachableError, BusyError) as lost:
                if self.give_up_seconds is not None and time.monotonic() - began >= self.give_up_seconds:
                    raise
                self._set(away=True, reason=str(lost))
                await asyncio.sleep(backoff.next_seconds())
            else:
                self._set(away=False, reason="")
                return result

    def _set(self, *, away: bool, reason: str) -> None:
        if away != self.away:
            self.away = away
            self._on_change()
            if away:
                _log.warning("trainer away; trying again", reason=reason)
            else:
                _log.info("trainer back")
