"""The watch over a group's present step: for whom it waits longer than steps take, and for whom it waits no longer.

It looks once a second, so that it costs a step nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import Context

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.group_training import GroupTraining
from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.merging import Merging
from cloud_trainer.groups.seats import Seats

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 1.0
LEAST_SECONDS, STEPS_LONG = 10.0, 5
"""Time for which a step waits for a member until that counts as late: this, or so many steps where they take longer."""
_STEPS_KNOWN = 20


class LateMembers:
    """The ranks for which a group waits longer than its steps take. Pure."""

    def __init__(self, longest_wait_seconds: float) -> None:
        """longest_wait_seconds: see `GroupConfig`."""
        self._longest_wait_seconds = longest_wait_seconds
        self._step: int | None = None
        self._seen_seconds = self._began_seconds = 0.0
        """Time of the last look, and of the one that has first seen the present step."""
        self._taken = deque[float](maxlen=_STEPS_KNOWN)
        """Seconds that a step took, as the last looks have seen."""
        self.since: Mapping[int, float] = {}
        """By rank that is late, the time since when the present step waits for it."""

    def look(self, step: int, missing: Iterable[int], begun: Mapping[int, float], now: float) -> list[int]:
        """Look at a step; list the ranks that are late since this look. begun: times at which ranks have begun."""
        if step != self._step:
            if self._step is not None and step > self._step:
                self._taken.append((now - self._began_seconds) / (step - self._step))
            self._step, self._began_seconds = step, now
        patience = max(LEAST_SECONDS, STEPS_LONG * max(self._taken, default=0.0))
        patience = min(patience, self._longest_wait_seconds)
        since = {rank: max(self._began_seconds, begun.get(rank, 0.0)) for rank in missing}
        before, self.since = self.since, {rank: at for rank, at in since.items() if now - at >= patience}
        return [rank for rank in self.since if rank not in before]

    def over(self, now: float) -> list[int]:
        """List the ranks for which the step has waited for as long as it may."""
        return [rank for rank, since in self.since.items() if now - since >= self._longest_wait_seconds]

    def forget(self) -> None:
        """Have nobody be late: the group does not train."""
        self._step, self.since = None, {}


class StepWatch:
    """The watch over one group. Used on the event loop; `late` is read on any thread."""

    def __init__(
        self, config: GroupConfig, seats: Seats, training: GroupTraining, loop: MergeLoop, alone: asyncio.Lock
    ) -> None:
        """alone: held by whoever changes the group."""
        self._config = config
        self._seats = seats
        self._training = training
        self._loop = loop
        self._alone = alone
        self._late = LateMembers(config.longest_wait_seconds)
        self._task: asyncio.Task[None] | None = None

    @property
    def late(self) -> dict[int, float]:
        """By rank for which the present step waits longer than steps take, the seconds for which it does."""
        now = time.monotonic()
        return {rank: now - since for rank, since in self._late.since.items()}

    def begin(self) -> None:
        """Begin, if it has not."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), context=Context())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            merging = self._training.merging
            if merging is None or merging.is_done:
                self._late.forget()
                continue
            step, missing = await merging.awaited()
            new = self._late.look(step, missing, self._seats.began_seconds, time.monotonic())
            for rank in new:
                told = {"group": self._config.name, "rank": rank, "step": step}
                is_linked = rank in self._seats.attached
                _log.warning("a step waits for a member", **told, subject=self._named(rank), linked=is_linked)
            if len(missing) < len(merging.ranks):
                await self._end_those_over(merging)

    async def _end_those_over(self, merging: Merging) -> None:
        """Go on without the members that are linked and have had the others wait for too long, and end their sessions."""
        for rank in set(self._late.over(time.monotonic())).intersection(self._seats.attached):
            async with self._alone:
                step, missing = await merging.awaited()
                if self._training.merging is not merging or rank not in missing:
                    continue
                told = {"group": self._config.name, "rank": rank, "step": step}
                _log.warning("a group goes on without a member", **told, subject=self._named(rank))
                await self._loop.hand_out(merging, await merging.pass_over(rank))
                if (seat := self._seats.at(rank)) is not None:
                    self._seats.end(seat)

    def _named(self, rank: int) -> str:
        return self._training.record.owner(rank) or ""
