"""The loop that takes the gradients of a group's members one after the other, and hands out what becomes of them.

It lasts as long as a life of the group. Beside it a watch looks once a second for whom the present step waits, which costs a
step nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.group import MOST_BEHIND, Group, Merged
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.merging import Merging, Snapshot
from cloud_trainer.groups.newcomers import Newcomers
from cloud_trainer.groups.seats import Seat, Seats
from cloud_trainer.groups.waits import LateMembers, Waits
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.execution.step_in_flight import Parcel

_REACH_SECONDS = 30.0
"""Longest wait of one call for a step."""
_LOOK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class MergeLoop:
    """The loop of one life of a group. Used on the event loop."""

    def __init__(
        self,
        config: GroupConfig,
        merging: Merging,
        store: GroupStore,
        seats: Seats,
        newcomers: Newcomers,
        late: LateMembers,
        alone: asyncio.Lock,
        fail: Callable[[Exception], None],
    ) -> None:
        """alone: held by whoever changes the group. fail: called where the weights may be updated in part; ends this life."""
        self.merging = merging
        self._config = config
        self._store = store
        self._seats = seats
        self._newcomers = newcomers
        self._late = late
        self._alone = alone
        self._fail = fail
        self._waits = Waits(config.leave_out_seconds)
        self._given: deque[tuple[Seat, Parcel]] = deque()
        """Gradients in the order in which they came: of each member those of the steps that K lets it make, and no others."""
        self._news = asyncio.Event()
        """Set when there is a gradient to take, or when what the loop waits for has changed."""
        self._moved = asyncio.Event()
        """Set, and replaced, whenever the group may have come to another step."""
        self._unaware: dict[int, str] = {}
        """By rank, the session that was the first to begin here after the end without knowing of it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    def start(self) -> None:
        """Begin to take gradients."""
        # The log of a group names no session, not even that of the member whose call begins this.
        self._tasks = [asyncio.create_task(work, context=Context()) for work in (self._run(), self._watch())]

    def queue_gradient(self, seat: Seat, one: Parcel) -> None:
        """Queue the gradient of a slice that the session of a seat has. One beyond what K lets it make ends the session."""
        merging = self.merging
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

    async def reach(self, step: int) -> bool:
        """Wait until the group is at a step; tell whether it is, which it is not if the life ends or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REACH_SECONDS):
                while not (self._is_over or self.merging.is_done) and self.merging.step < step:
                    await self._moved.wait()
        return not self._is_over and self.merging.step >= step

    async def hand_out(self, merged: list[Merged]) -> None:
        """Have members take new weights, once a copy of all is written if they are the last ones."""
        if (copied := self.merging.take_copy()) is not None:
            await self._save(copied)
            if self.merging.is_done:
                await self._store.written()  # a member that is done goes, and could not do these steps again
        for each in merged:
            if (receiver := self._seats.at(each.rank)) is not None and receiver.began_seconds is not None:
                receiver.session.worker.executor.take_merged(each.step, each.of, each.weights, each.rate_drops)

    async def end(self, steps: int) -> None:
        """End the group after so many steps, which are done. On return that is on disk.

        The sessions of members that are further end, so that these begin again and hear it; others hear it when they are.
        """
        beyond = await self.merging.end(steps)
        await self.hand_out([])
        for rank in beyond:
            if (seat := self._seats.at(rank)) is not None and seat.began_seconds is not None:
                self._seats.end(seat)
        self._moved.set()

    def check_knows_end(self, seat: Seat) -> None:
        """Refuse a member to which the trainer that decides says more steps than the group does here, in a second session.

        That trainer hears of an end first. So what it said before the first of these sessions may be old, but not what it has
        said since: a member has told the end to this trainer alone. Raises ProtocolError.
        """
        steps, told = self.merging.agreement.steps, seat.session.request.group.steps
        if told > steps and self._unaware.setdefault(seat.rank, seat.session.id) != seat.session.id:
            raise ProtocolError(
                f"group {self._config.name!r} does {told} steps at the trainer that decides, and a member has ended it here "
                f"alone, after {steps}; it cannot go on, so stop its trainers, remove cloud-trainer-groups in "
                "checkpoints.location of each, and begin again without that member"
            )

    def stop(self) -> None:
        """Take no more gradients, and have nobody wait for a step. Called by who holds `alone`, or by this loop itself."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        self._late.forget()
        self._moved.set()

    async def close(self) -> None:
        """Take no more gradients. On return, the loop does nothing any more."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def keep(self) -> None:
        """Write a last checkpoint, if the group is between two steps."""
        if (copied := await self.merging.copy_now()) is not None:
            await self._save(copied)

    async def _run(self) -> None:
        while not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left(time.monotonic())):
                    await self._news.wait()
            async with self._alone:
                given = self._given.popleft() if self._given else None
                if not self._given:
                    self._news.clear()
                await self._go_on(given)
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    async def _go_on(self, given: tuple[Seat, Parcel] | None) -> None:
        """Take a gradient, and go on without those that are waited for no longer."""
        merging, waits = self.merging, self._waits
        try:
            if given is not None:
                await self._merge(*given)
            for step, one in waits.over(time.monotonic()):
                await self.hand_out(await merging.on_thread(Group.leave_out, step, one))
            await self.hand_out(await self._newcomers.lapse(merging, time.monotonic()))
            waits.note(merging.step, merging.held_up(), time.monotonic())
        except Exception as failure:
            _log.exception("a group has failed", group=self._config.name)
            self._fail(failure)

    def _seconds_left(self, now: float) -> float | None:
        """Return the time until there is something to do for a block that waits, or a promise."""
        left = (self._waits.seconds_left(now), self._newcomers.seconds_left(now))
        return min((seconds for seconds in left if seconds is not None), default=None)

    async def _merge(self, seat: Seat, one: Parcel) -> None:
        if not self._seats.holds(seat) or seat.began_seconds is None:
            return  # its member has come back in another session
        if one.step >= self.merging.agreement.steps:  # another member has ended the training
            self._seats.end(seat)
            return
        if self._config.leave_out_seconds is not None and one.step < self.merging.step - MOST_BEHIND:
            _log.warning(
                "a member is too late, and begins again", group=self._config.name, rank=seat.rank, step=one.step
            )
            self._seats.end(seat)
            return
        try:
            await self.hand_out(await self.merging.merge(seat.rank, one))
        except ProtocolError as refusal:
            seat.session.worker.executor.fail(refusal)

    async def _save(self, copied: Snapshot) -> None:
        merging = self.merging
        await self._store.try_to_keep_members(merging)
        name = CheckpointName(merging.life.number, copied.step)
        await self._store.begin_saving(name, merging.agreement, copied, merging.staying)

    async def _watch(self) -> None:
        """Tell once of each member that is late, and go on without those for which the others have waited too long."""
        merging = self.merging
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if merging.is_done:
                self._late.forget()
                return
            step, missing = await merging.awaited()
            for rank in self._late.look(step, missing, self._seats.began_seconds, time.monotonic()):
                is_linked = rank in self._seats.attached
                _log.warning("a step waits for a member", **self._told(rank, step), linked=is_linked)
            if len(missing) < len(merging.ranks):
                for rank in set(self._late.over(time.monotonic())).intersection(self._seats.attached):
                    await self._go_on_without(rank)

    async def _go_on_without(self, rank: int) -> None:
        """Go on without a member that is linked and has had the others wait for too long, and end its session."""
        async with self._alone:
            step, missing = await self.merging.awaited()
            if rank not in missing:
                return
            _log.warning("a group goes on without a member", **self._told(rank, step))
            await self.hand_out(await self.merging.on_thread(Group.pass_over, rank))
            if (seat := self._seats.at(rank)) is not None:
                self._seats.end(seat)

    def _told(self, rank: int, step: int) -> dict[str, object]:
        subject = self._store.owner(rank) or ""
        return {"group": self._config.name, "rank": rank, "step": step, "subject": subject}
