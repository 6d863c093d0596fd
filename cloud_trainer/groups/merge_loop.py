"""The loop that takes the gradients of a group's members one after the other, and hands out what becomes of them."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from contextvars import Context

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.group_training import GroupTraining
from cloud_trainer.groups.merging import Copy, Merging
from cloud_trainer.groups.seats import Seat, Seats
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.execution.group import MOST_BEHIND, Merged
from shared.execution.step_in_flight import Parcel

_REACH_SECONDS = 30.0
"""Longest wait of one call for a step."""
_log = structlog.get_logger(__name__)


class MergeLoop:
    """The loop of one group. Used on the event loop."""

    def __init__(
        self, config: GroupConfig, store: GroupStore, seats: Seats, training: GroupTraining, alone: asyncio.Lock
    ) -> None:
        """alone: held by whoever changes the group."""
        self._config = config
        self._store = store
        self._seats = seats
        self._training = training
        self._alone = alone
        self._given: deque[tuple[Seat, Parcel]] = deque()
        """Gradients in the order in which they came: of each member those of the steps that K lets it make, and no others."""
        self._news = asyncio.Event()
        """Set when there is a gradient to take, or when what the loop waits for has changed."""
        self._moved = asyncio.Event()
        """Set, and replaced, whenever the group may have come to another step."""
        self._task: asyncio.Task[None] | None = None
        """The task of the loop, from the first member on."""

    def begin(self) -> None:
        """Begin, if it has not."""
        if self._task is None:
            # The log of a group names no session, not even that of the member whose call begins this.
            self._task = asyncio.create_task(self._run(), context=Context())

    def give(self, seat: Seat, one: Parcel) -> None:
        """Take the gradient of a slice that the session of a seat has. One beyond what K lets it make ends the session."""
        if (merging := self._training.merging) is None:
            return  # its member has to begin again
        if one.step > merging.step + merging.agreement.staleness:
            refusal = (
                f"rank {seat.rank} gives a gradient of step {one.step}; group {self._config.name!r} is at step {merging.step}, "
                f"and with K = {merging.agreement.staleness} nobody is so far from it"
            )
            seat.session.worker.executor.fail(ProtocolError(refusal))
            return
        self._given.append((seat, one))
        self._news.set()

    def drop_unseated(self) -> None:
        """Forget the gradients of sessions that have ended."""
        self._given = deque(given for given in self._given if self._seats.holds(given[0]))

    def look_again(self) -> None:
        """Have the loop look at what it waits for, because that has changed."""
        self._news.set()

    async def reach(self, life: int, step: int) -> None:
        """Wait until the group is at a step of a life. Raises NotNowError where it is not in some seconds."""
        training = self._training
        with suppress(TimeoutError):
            async with asyncio.timeout(_REACH_SECONDS):
                while training.life == life and training.step < step:
                    await self._moved.wait()
        if training.life != life or training.step < step:
            raise training.elsewhere(f"it is at step {training.step}, and not yet at step {step} of life {life}")

    async def hand_out(self, merging: Merging, merged: list[Merged]) -> None:
        """Have members take new weights, once a copy of all is written if they are the last ones."""
        if (copied := merging.take_copy()) is not None:
            await self._save(merging, copied)
            if merging.is_done:
                await self._store.written()  # a member that is done goes, and could not do these steps again
        for each in merged:
            if (receiver := self._seats.at(each.rank)) is not None and receiver.began_seconds is not None:
                receiver.session.worker.executor.take_merged(each.step, each.of, each.weights)

    async def stop(self) -> None:
        """Take no more gradients."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def keep(self) -> None:
        """Write a last checkpoint, if the group is between two steps."""
        if (merging := self._training.merging) is not None and (copied := await merging.copy_now()) is not None:
            await self._save(merging, copied)
        await self._store.written()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left(time.monotonic())):
                    await self._news.wait()
            async with self._alone:
                given = self._given.popleft() if self._given else None
                if not self._given:
                    self._news.clear()
                if (merging := self._training.merging) is not None:
                    await self._go_on(merging, given)
            self._moved.set()
            self._moved = asyncio.Event()

    async def _go_on(self, merging: Merging, given: tuple[Seat, Parcel] | None) -> None:
        """Take a gradient, and go on without those that are waited for no longer."""
        waits, newcomers = self._training.waits, self._training.newcomers
        try:
            if given is not None:
                await self._merge(merging, *given)
            for step, one in waits.over(time.monotonic()):
                await self.hand_out(merging, await merging.leave_out(step, one))
            await self.hand_out(merging, await newcomers.lapse(merging, time.monotonic()))
            waits.note(merging.step, merging.held_up(), time.monotonic())
        except Exception as failure:
            _log.exception("a group has failed", group=self._config.name)
            self._fail(failure)

    def _seconds_left(self, now: float) -> float | None:
        """Return the time until there is something to do for a block that waits, or a promise."""
        left = (self._training.waits.seconds_left(now), self._training.newcomers.seconds_left(now))
        return min((seconds for seconds in left if seconds is not None), default=None)

    async def _merge(self, merging: Merging, seat: Seat, one: Parcel) -> None:
        if not self._seats.holds(seat) or seat.began_seconds is None:
            return  # its member has come back in another session
        if self._config.leave_out_seconds is not None and one.step < merging.step - MOST_BEHIND:
            _log.warning(
                "a member is too late, and begins again", group=self._config.name, rank=seat.rank, step=one.step
            )
            self._seats.end(seat)
            return
        try:
            await self.hand_out(merging, await merging.merge(seat.rank, one))
        except ProtocolError as refusal:
            seat.session.worker.executor.fail(refusal)

    def _fail(self, failure: Exception) -> None:
        """Forget the weights, which may be updated in part: the members begin again, at the newest checkpoint."""
        self._training.forget()
        for session in self._seats.clear():
            session.worker.executor.fail(failure)

    async def _save(self, merging: Merging, copied: Copy) -> None:
        await self._training.record.try_keep(merging)
        name = CheckpointName(merging.life.number, copied.step)
        await self._store.begin_saving(name, merging.agreement, copied.state, merging.staying)
