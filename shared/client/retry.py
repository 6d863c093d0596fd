"""Waiting for a trainer that cannot be reached, or is about to be upgraded: attempts with full jitter between them, as long as
the user allows."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from shared.client.backoff import Backoff
from shared.errors import BusyError, UnreachableError, VersionError
from shared.events import Emit, ignore
from shared.events.calls import TrainersAwaited
from shared.version import PROTOCOL_VERSION

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_NOWHERE = object()
"""Stand-in for the place of the last failure before the first attempt."""

FIRST_WAIT_SECONDS, SOON_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.05, 0.5, 900.0
"""The ceilings of the first wait, of the waits of an absence of seconds, and of all. The second one and gRPC's own waits
(`shared/transport/rpc/options.py`) decide how soon the agent notices that a link is back."""


def new_backoff() -> Backoff:
    """The waits of one absence of the trainer, from the first wait on."""
    return Backoff(FIRST_WAIT_SECONDS, SOON_WAIT_SECONDS, LONGEST_WAIT_SECONDS)


class Spacing:
    """Waits between attempts that get somewhere and are lost again: longer with each that is lost at the same place.

    The first attempt at a place does not wait.
    """

    def __init__(self) -> None:
        self._lost_at: object = _NOWHERE
        self._began_seconds = 0.0
        self._backoff = new_backoff()

    async def wait(self, place: object, told_seconds: float = 0.0) -> None:
        """Wait before the next attempt. place: how far the last one came. told_seconds: to wait besides, as the peer asks."""
        if place != self._lost_at:
            self._lost_at, self._began_seconds, self._backoff = place, time.monotonic(), new_backoff()
            wait_seconds = 0.0
        else:
            wait_seconds = self._backoff.next_seconds(time.monotonic() - self._began_seconds)
        await asyncio.sleep(told_seconds + wait_seconds)


class Retry:
    """Repeats calls while a trainer is away. Several may wait at the same time, for one trainer or for several."""

    def __init__(self, give_up_seconds: float | None, emit: Emit = ignore, upgrade_wait_seconds: float = 0.0) -> None:
        """give_up_seconds: the longest absence; None bounds none. upgrade_wait_seconds: the longest wait for an upgrade, of a
        trainer that is one protocol version ahead or behind."""
        self.give_up_seconds = give_up_seconds
        self._upgrade_wait_seconds = upgrade_wait_seconds
        self._reasons: dict[object, str] = {}
        """By the call that waits."""
        self._emit = emit

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why calls wait now: a sentence each that names the trainer, without repetition."""
        return tuple(dict.fromkeys(self._reasons.values()))

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` again for as long as it raises UnreachableError, BusyError, or VersionError for a trainer that is one
        version ahead or behind, and return its result.

        A trainer that says when to come again is left alone for so long. If the next attempt would come after
        `give_up_seconds`, or after the wait for an upgrade, raises the last error of `attempt`; raises any other error at once.
        `attempt` must be safe to repeat.
        """
        began, backoff, call, limit_seconds = time.monotonic(), new_backoff(), object(), self.give_up_seconds
        is_upgrade = False
        try:
            while True:
                try:
                    return await attempt()
                except (UnreachableError, BusyError, VersionError) as lost:
                    if isinstance(lost, VersionError) and not is_upgrade:
                        if abs(lost.theirs - PROTOCOL_VERSION) != 1:
                            raise
                        is_upgrade, began, limit_seconds = True, time.monotonic(), self._upgrade_wait_seconds
                        self._reasons.pop(call, None)  # it is another wait, which is told as such
                    away_seconds = time.monotonic() - began
                    told_seconds = lost.retry_after_seconds
                    wait_seconds = told_seconds + backoff.next_seconds(away_seconds)
                    if limit_seconds is not None:
                        left_seconds = limit_seconds - away_seconds
                        if left_seconds <= told_seconds:
                            raise
                        wait_seconds = min(wait_seconds, left_seconds)
                    if self.note_waiting(call, str(lost)):
                        waiting = (
                            "waiting until both sides are upgraded" if is_upgrade else "trainer away; trying again"
                        )
                        _log.warning(waiting, reason=str(lost))
                    await asyncio.sleep(wait_seconds)
        finally:
            self.note_done(call)

    def note_waiting(self, call: object, reason: str) -> bool:
        """Note that a call, or whatever stands for one, waits for a trainer, and why. Returns False where that is noted: later
        reasons mostly say less."""
        if call in self._reasons:
            return False
        self._reasons[call] = reason
        self._emit(TrainersAwaited(self.reasons))
        return True

    def note_done(self, call: object) -> None:
        """Note that a call waits no more. Nothing happens where it did not."""
        if (reason := self._reasons.pop(call, None)) is not None:
            if reason not in self._reasons.values():
                _log.info("trainer no longer waited for", reason=reason)
            self._emit(TrainersAwaited(self.reasons))
