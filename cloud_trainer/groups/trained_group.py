"""One group of the trainer's configuration, and what the sessions of its members ask of it."""

import asyncio
import time
from collections.abc import Sequence
from contextvars import Context
from pathlib import Path
from typing import NamedTuple

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.group_training import BuildHeld, GroupTraining
from cloud_trainer.groups.lives import Life, Position
from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.merging import GroupFigures, Merging
from cloud_trainer.groups.refusals import NotNowError, TooEarlyError
from cloud_trainer.groups.seats import EndSession, Seat, Seats
from cloud_trainer.groups.step_watch import StepWatch
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.errors import IsthmusError, ProtocolError, StorageError
from shared.execution.step_in_flight import Parcel

_log = structlog.get_logger(__name__)


class Begun(NamedTuple):
    """The point at which a member begins."""

    life: Life
    step: int
    joins: bool = False
    """True if it has not begun, and has to join first: the group can wait for it from this step on."""
    awaited: Sequence[int] = ()
    """Ranks of others for which the group waits now, and which are away."""


class TrainedGroup:
    """A group, as its members' sessions and its operator see it. Used on the event loop."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        threads: TrainerThreads,
        build: BuildHeld,
        end_session: EndSession,
        step_logs: Path | None = None,
    ) -> None:
        """step_logs: the folder for a log of every update; None for no log."""
        self.config = config
        self.seats = Seats(config.name, end_session)
        self._training = GroupTraining(config, store, self.seats, threads, build, step_logs)
        self._record = self._training.record
        self._alone = asyncio.Lock()
        self._loop = MergeLoop(config, store, self.seats, self._training, self._alone)
        self._watch = StepWatch(config, self.seats, self._training, self._loop, self._alone)
        self._forgetting: asyncio.Task[None] | None = None
        """The task that removes the checkpoints of the training that has ended last."""

    @property
    def step(self) -> int:
        """Return the oldest step that is not done; 0 before the first."""
        return self._training.step

    @property
    def steps(self) -> int:
        """Return the steps that the group does; 0 before the first member."""
        agreement = self._training.agreement
        return 0 if agreement is None else agreement.steps

    @property
    def life(self) -> int:
        """Return the number of its life; 0 before the first."""
        return self._training.life

    @property
    def members(self) -> list[int]:
        """List the ranks that take part in the present step; those of the first one before it begins."""
        merging = self._training.merging
        return list(range(self.config.size)) if merging is None else sorted(merging.ranks)

    @property
    def missing(self) -> list[int]:
        """List the ranks for which the present step waits; all before the first step, and none after the last."""
        if (merging := self._training.merging) is None:
            return list(range(self.config.size))
        return [] if merging.is_done else merging.missing()

    @property
    def late(self) -> dict[int, float]:
        """By rank for which the present step waits longer than steps take, the seconds for which it does."""
        return self._watch.late

    @property
    def figures(self) -> GroupFigures:
        """Return its counts by rank."""
        return self._training.figures

    async def occupy(self, seat: Seat, theirs: Agreement) -> int:
        """Give a seat its rank, and return the steps that the group does. theirs: what its member would train.

        A session that had the rank and has lost its member ends. Raises ConfigError, GroupRefusal or StorageError, and changes
        nothing, for a member that would train something else.
        """
        async with self._alone:
            self.seats.check_free(seat.rank)
            agreement = await self._training.agree(seat, theirs)
            self._loop.begin()
            self._watch.begin()
            self.seats.occupy(seat)
            return agreement.steps

    async def position(self) -> Position:
        """Tell where the group is here. Raises StorageError."""
        return await self._training.position()

    async def begin(self, session: Session, wanted: Life | None, others: Sequence[Position], step: int) -> Begun:
        """Have the session of a member begin. Repeating it has the member begin again. Raises IsthmusError.

        Where this trainer decides, it says at which step, by the positions at the other trainers. Elsewhere the member brings
        the life and the step that were decided.
        """
        async with self._alone:
            seat, training = self.seats.seat_of(session), self._training
            if (wanted is not None) == seat.decides:
                raise ProtocolError(
                    "a member first asks the trainer of the first block that training changes, and tells the others its answer"
                )
            merging, step = await self._found(seat, wanted, others, step)
            if (first_step := await training.newcomers.promise(merging, seat.rank, step, seat.subject)) is not None:
                seat.began_seconds, seat.may_join = None, True
                self._loop.look_again()
                return Begun(merging.life, first_step, joins=True)
            training.check_step(merging, step)
            seat.began_seconds, seat.may_join = None, False
            beginning = await merging.take_seat(seat.rank, step)
            seat.has_trained = True
            await session.worker.begin_in_group(*beginning)
            if not self.seats.holds(seat):
                await session.worker.stop()
                raise self.seats.lost(seat.rank)
            seat.began_seconds = time.monotonic()
            await self._record.begin(seat.rank, seat.subject, merging)
            if merging.is_done:
                _log.warning("a member comes after the last step", group=self.config.name, rank=seat.rank)
            else:
                _log.info("a member begins", group=self.config.name, rank=seat.rank, step=beginning.step)
                if beginning.step > merging.ranks[seat.rank] and seat.is_lossy:
                    self.figures.residuals_lost[seat.rank] += 1
                    told = {"group": self.config.name, "rank": seat.rank, "step": beginning.step}
                    _log.info("what its codec had left of its gradients is lost", **told)
            _, awaited = await merging.awaited()
            away = set(awaited).difference(self.seats.attached, [seat.rank])
            return Begun(merging.life, beginning.step, awaited=sorted(away))

    async def _found(
        self, seat: Seat, wanted: Life | None, others: Sequence[Position], step: int
    ) -> tuple[Merging, int]:
        """Return the group in the life in which a member is to begin, and the step of all trainers. Raises IsthmusError.

        A member that has begun stays in the group where it cannot begin as it says.
        """
        training, before = self._training, self._training.merging
        began_seconds, seat.began_seconds = seat.began_seconds, None
        try:
            if wanted is not None:
                return await training.following(wanted, seat), step
            if len(others) != seat.other_trainers:
                raise ProtocolError(
                    f"a member tells the positions of {len(others)} other trainers; the group has {seat.other_trainers}"
                )
            merging = await training.deciding(others, seat)
        finally:
            seat.began_seconds = began_seconds if training.merging is before else None
        return merging, min([merging.step, *(other.step_in(merging.life) for other in others)])

    async def leave(self, session: Session, last_step: int) -> None:
        """Have the member of a session take part in no step after its last one, wherever the group goes back to.

        It stays until the end where that is the last of all. Raises GroupRefusal for a session that has not begun and where
        that cannot be written, and ProtocolError for a step that cannot be its last.
        """
        async with self._alone:
            seat = self.seats.seat_of(session)
            if (merging := self._training.merging) is None or seat.began_seconds is None:
                raise TooEarlyError(
                    f"rank {seat.rank} has not begun in group {self.config.name!r}, so that it has no last step there",
                )
            if last_step + 1 >= merging.agreement.steps:
                return
            await self._loop.hand_out(merging, await merging.leave(seat.rank, last_step + 1))
            try:
                await self._record.keep(merging)
            except StorageError as failure:  # until it is written, the member has its last step still before it
                raise NotNowError(
                    f"group {self.config.name!r} cannot note that rank {seat.rank} leaves: {failure}",
                ) from failure
            _log.info("a member leaves", group=self.config.name, rank=seat.rank, last_step=last_step)
            if not merging.staying:
                _log.warning("nobody goes on with a group", group=self.config.name, step=last_step + 1)

    async def join(self, session: Session, life: int, first_step: int) -> None:
        """Have the member of a session take part from a step of a life on, at which it begins. Raises as `Newcomers.join` does.

        Raises TooEarlyError for one that was not told to join.
        """
        async with self._alone:
            seat = self.seats.seat_of(session)
            training = self._training
            if not seat.may_join:
                raise TooEarlyError(
                    f"rank {seat.rank} of group {self.config.name!r} was not told to join; RestoreWorker says whether it is",
                )
            if (merging := training.merging) is None or self.life != life:
                raise training.elsewhere(f"life {life} has ended")
            merged = await training.newcomers.join(merging, seat.rank, first_step)
            await self._record.begin(seat.rank, seat.subject, merging)
            _log.info("a member joins", group=self.config.name, rank=seat.rank, first_step=first_step)
            await self._loop.hand_out(merging, merged)
            self._loop.look_again()

    async def free(self, rank: int) -> bool:
        """Have a rank that has begun belong to nobody any more; tells whether it belonged to any. Raises StorageError."""
        async with self._alone:
            return await self._record.free(rank, self._training.merging)

    def owner(self, rank: int) -> str | None:
        """Return the subject to which a rank belongs since it has begun; None if it is nobody's."""
        return self._record.owner(rank)

    async def reach(self, life: int, step: int) -> None:
        """Wait until the group is at a step of a life. Raises NotNowError where it is not in some seconds."""
        await self._loop.reach(life, step)

    def take_gradient(self, rank: int, session_id: str, one: Parcel) -> None:
        """Take the gradient of a slice that the session of a member has; nothing comes of it if the rank is another one's."""
        if (seat := self.seats.at(rank)) is not None and seat.session.id == session_id:
            self._loop.give(seat, one)

    async def vacate(self, session: Session) -> None:
        """Note that a session has ended. The group waits for its member, unless all is done."""
        if (seat := self.seats.find(session)) is not None:
            self.seats.vacate(seat)
        self._loop.drop_unseated()
        if seat is None:
            return
        training = self._training
        if training.newcomers.lose(seat.rank):
            self._loop.look_again()
        async with self._alone:
            if session.forgotten:
                await self._finish(seat.rank)
            await training.leave_first_weights(seat.rank)
            if training.merging is None and not self.seats.sessions:
                training.agreement = None

    async def close(self) -> None:
        """Take no more gradients, and write a last checkpoint, if the group is between two steps."""
        await self._watch.stop()
        await self._loop.stop()
        await self.seats.close()
        if self._forgetting is not None:
            await asyncio.wait({self._forgetting})
        async with self._alone:
            await self._loop.keep()

    async def _finish(self, rank: int) -> None:
        """Note that a member has all that the group has made, on disk before it is told so."""
        if (merging := self._training.merging) is None or not merging.is_done or self.seats.at(rank) is not None:
            return
        if await self._record.finish(rank, merging):
            self._training.end()
            self._forgetting = asyncio.create_task(self._forget(), context=Context())

    async def _forget(self) -> None:
        async with self._alone:
            try:
                await self._training.forget_ended()
            except IsthmusError as failure:
                _log.warning("checkpoints of a group not removed", group=self.config.name, reason=str(failure))
