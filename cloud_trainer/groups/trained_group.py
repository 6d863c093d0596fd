"""One group of the trainer's configuration: what its members agree on, the life that it is in, and what they do in that.

It knows its members by their seats, and nothing of RPCs: it refuses by errors of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from pathlib import Path
from typing import NamedTuple

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.lives import Life, Position
from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.merging import GroupFigures, Merging
from cloud_trainer.groups.newcomers import Newcomers
from cloud_trainer.groups.next_life import NextLife, NextLives
from cloud_trainer.groups.refusals import NotNowError, elsewhere
from cloud_trainer.groups.seats import EndSession, Seat, Seats
from cloud_trainer.groups.waits import LateMembers
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.errors import IsthmusError, ProtocolError, RefusedError, StorageError
from shared.execution.step_in_flight import Parcel
from shared.training.block_state import BlockTensors
from shared.training.held_blocks import HeldBlocks
from shared.training.step_log import StepLog

_log = structlog.get_logger(__name__)
BuildHeld = Callable[[Agreement, int], Awaitable[HeldBlocks]]
"""Builder of the blocks of an agreement, for so many members, which need not fit the first weights."""


class Begun(NamedTuple):
    """The point at which a member begins."""

    life: Life
    step: int
    joins: bool = False
    """True if it has not begun, and has to join first: the group can wait for it from this step on."""
    awaited: Sequence[int] = ()
    """Ranks of others for which the group waits now, and which are away."""


class TrainedGroup:
    """A group, from one life to the next. Used on the event loop; figures and properties are read on any thread."""

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
        self.figures = GroupFigures()
        self._store = store
        self._lane = threads.compute_lane(f"group {config.name}")
        self._build = build
        self._step_logs = step_logs
        self._newcomers = Newcomers(config.name)
        self._late = LateMembers(config.longest_wait_seconds)
        self._next = NextLives(config, store, self.seats, threads)
        self._alone = asyncio.Lock()
        """Held by whoever changes the group."""
        self._agreement: Agreement | None = None
        """The training of all; None before the first member."""
        self._loop: MergeLoop | None = None
        """Merge loop in the present life; None before the first."""
        self._forgetting: asyncio.Task[None] | None = None
        """The task that removes the checkpoints of the training that has ended last."""

    @property
    def _merging(self) -> Merging | None:
        return None if self._loop is None else self._loop.merging

    @property
    def step(self) -> int:
        """Return the oldest step that is not done; 0 before the first."""
        return 0 if (merging := self._merging) is None else merging.step

    @property
    def steps(self) -> int:
        """Return the steps that the group does; 0 before the first member."""
        return 0 if (agreement := self._agreement) is None else agreement.steps

    @property
    def life(self) -> int:
        """Return the number of its life; 0 before the first."""
        return 0 if (merging := self._merging) is None else merging.life.number

    @property
    def members(self) -> list[int]:
        """List the ranks that take part in the present step; those of the first one before it begins."""
        return list(range(self.config.size)) if (merging := self._merging) is None else sorted(merging.ranks)

    @property
    def missing(self) -> list[int]:
        """List the ranks for which the present step waits; all before the first step, and none after the last."""
        if (merging := self._merging) is None:
            return list(range(self.config.size))
        return [] if merging.is_done else merging.missing()

    @property
    def late(self) -> dict[int, float]:
        """By rank for which the present step waits longer than steps take, the seconds for which it does."""
        now = time.monotonic()
        return {rank: now - since for rank, since in self._late.since.items()}

    async def position(self) -> Position:
        """Tell where the group is here. Raises StorageError."""
        return await self._next.position(self._merging)

    async def occupy(self, seat: Seat, theirs: Agreement) -> int:
        """Give a seat its rank, and return the steps that the group does. theirs: what its member would train.

        A session that had the rank and has lost its member ends. Raises ConfigError, RefusedError or StorageError, and changes
        nothing, for a member that would train something else, and for a rank that is another subject's.
        """
        async with self._alone:
            self.seats.check_free(seat.rank, seat.subject)
            if self._agreement is None:
                self._agreement = await self._store.stored_agreement()
            self._store.check_owner(seat.rank, seat.subject, self._merging)
            if self._agreement is None:
                self._next.check_can_begin(seat.rank)
            agreement = self._agreement or theirs
            agreement.check(self.config.name, theirs)
            self._agreement = agreement
            self.seats.occupy(seat)
            return agreement.steps

    async def begin(self, session: Session, wanted: Life | None, others: Sequence[Position], step: int) -> Begun:
        """Have the session of a member begin. Repeating it has the member begin again. Raises IsthmusError.

        Where this trainer decides, it says at which step, by the positions at the other trainers. Elsewhere the member brings
        the life and the step that were decided.
        """
        async with self._alone:
            seat = self.seats.seat_of(session)
            if (wanted is not None) == seat.decides:
                raise ProtocolError(
                    "a member first asks the trainer of the first block that training changes, and tells the others its answer"
                )
            loop = await self._found(seat, wanted, others)
            merging = loop.merging
            told_steps = session.request.group.steps
            if not seat.decides:
                if told_steps < merging.agreement.steps:
                    await self._end(loop, told_steps)
                loop.check_knows_end(seat)
            if wanted is None:
                step = min([merging.step, *(other.step_in(merging.life) for other in others)])
            if (promised := await self._newcomers.promise(merging, seat.rank, step, seat.subject)) is not None:
                seat.began_seconds, seat.may_join = None, True
                loop.look_again()
                return Begun(merging.life, promised, joins=True)
            merging.check_can_begin_at(step)
            seat.began_seconds, seat.may_join = None, False
            first_step, weights = await merging.take_seat(seat.rank, step)
            seat.has_trained = True
            await session.worker.begin_in_group(first_step, weights)
            if not self.seats.holds(seat):
                await session.worker.stop()
                raise self.seats.lost(seat.rank)
            seat.began_seconds = time.monotonic()
            await self._store.note_begun(seat.rank, seat.subject, merging)
            told = {"group": self.config.name, "rank": seat.rank}
            if merging.is_done:
                _log.warning("a member comes after the last step", **told)
            else:
                _log.info("a member begins", **told, step=first_step)
                if first_step > merging.ranks[seat.rank] and seat.is_lossy:
                    self.figures.residuals_lost[seat.rank] += 1
                    _log.info("what its codec had left of its gradients is lost", **told, step=first_step)
            _, awaited = await merging.awaited()
            away = set(awaited).difference(self.seats.attached, [seat.rank])
            return Begun(merging.life, first_step, awaited=sorted(away))

    async def averages(self, block: int) -> BlockTensors:
        """Copy the averages of the weights of a block, named as in its state; none where none are kept."""
        return {} if (merging := self._merging) is None else await merging.averages(block)

    async def leave(self, session: Session, last_step: int, *, ends_group: bool) -> None:
        """Have the member of a session take part in no step after its last one, wherever the group goes back to.

        It stays until the end where that is the last of all. ends_group: it is, because the group ends there.
        Raises RefusedError for a session that has not begun, or cannot end the group, and where that cannot be written, and
        ProtocolError for a step that cannot be its last.
        """
        async with self._alone:
            seat, name = self.seats.seat_of(session), self.config.name
            if (loop := self._loop) is None or seat.began_seconds is None:
                raise RefusedError(
                    f"rank {seat.rank} has not begun in group {name!r}, so that it has no last step there"
                )
            merging = loop.merging
            if ends_group:
                if self.config.leave_out_seconds is not None or seat.rank not in merging.ranks:
                    raise RefusedError(
                        f"rank {seat.rank} cannot end group {name!r}: it takes no part in that any more, or the group goes on "
                        "without late members (leave_out_seconds)"
                    )
                await self._end(loop, last_step + 1)
                return
            if last_step + 1 >= merging.agreement.steps:
                return
            await loop.hand_out(await merging.on_thread(Group.leave, seat.rank, last_step + 1))
            try:
                await self._store.keep_members(merging)
            except StorageError as failure:  # until it is written, the member has its last step still before it
                raise NotNowError(f"group {name!r} cannot note that rank {seat.rank} leaves: {failure}") from failure
            _log.info("a member leaves", group=name, rank=seat.rank, last_step=last_step)
            if not merging.staying:
                _log.warning("nobody goes on with a group", group=name, step=last_step + 1)

    async def _end(self, loop: MergeLoop, steps: int) -> None:
        """End the group after so many steps, unless it does no more anyway. Raises ProtocolError where it is elsewhere."""
        if steps != loop.merging.agreement.steps:
            await loop.end(steps)
            self._agreement = loop.merging.agreement
            _log.info("a member ends the training of a group", group=self.config.name, steps=steps)

    async def join(self, session: Session, life: int, first_step: int) -> None:
        """Have the member of a session take part from a step of a life on, at which it begins. Raises as `Newcomers.join` does.

        Raises RefusedError for one that was not told to join.
        """
        async with self._alone:
            seat, name = self.seats.seat_of(session), self.config.name
            if not seat.may_join:
                raise RefusedError(
                    f"rank {seat.rank} of group {name!r} was not told to join; RestoreWorker says whether it is"
                )
            if (loop := self._loop) is None or self.life != life:
                raise elsewhere(name, f"life {life} has ended")
            merged = await self._newcomers.join(loop.merging, seat.rank, first_step)
            await self._store.note_begun(seat.rank, seat.subject, loop.merging)
            _log.info("a member joins", group=name, rank=seat.rank, first_step=first_step)
            await loop.hand_out(merged)
            loop.look_again()

    async def reach(self, life: int, step: int) -> None:
        """Wait until the group is at a step of a life. Raises NotNowError where it is not in some seconds."""
        if (loop := self._loop) is None or self.life != life or not await loop.reach(step):
            raise elsewhere(self.config.name, f"it is at step {self.step}, and not yet at step {step} of life {life}")

    def take_gradient(self, rank: int, session_id: str, one: Parcel) -> None:
        """Take the gradient of a slice that the session of a member has. Where the member has to begin again, it is dropped."""
        seat = self.seats.at(rank)
        if self._loop is not None and seat is not None and seat.session.id == session_id:
            self._loop.queue_gradient(seat, one)

    async def vacate(self, session: Session) -> None:
        """Note that a session has ended. The group waits for its member, unless all is done."""
        if (seat := self.seats.find(session)) is not None:
            self.seats.vacate(seat)
        if self._loop is not None:
            self._loop.drop_unseated()
        if seat is None:
            return
        if self._newcomers.lose(seat.rank) and self._loop is not None:
            self._loop.look_again()
        async with self._alone:
            # A member that has lost its session, or opens one and gives up before it begins, still lacks the result.
            if session.forgotten and not session.is_replaced and seat.began_seconds is not None:
                await self._finish(seat.rank)
            await self._leave_first_weights(seat.rank)
            if self._loop is None and not self.seats.sessions:
                self._agreement = None

    async def free(self, rank: int) -> bool:
        """Have a rank that has begun belong to nobody any more; tells whether it belonged to any. Raises StorageError."""
        async with self._alone:
            return await self._store.free(rank, self._merging)

    def owner(self, rank: int) -> str | None:
        """Return the subject to which a rank belongs since it has begun; None if it is nobody's."""
        return self._store.owner(rank)

    async def close(self) -> None:
        """Take no more gradients, and write a last checkpoint, if the group is between two steps."""
        if (loop := self._loop) is not None:
            await loop.close()
        await self.seats.close()
        if self._forgetting is not None:
            await asyncio.wait({self._forgetting})
        async with self._alone:
            if self._loop is not None:
                await self._loop.keep()
            await self._store.written()

    async def _found(self, seat: Seat, wanted: Life | None, others: Sequence[Position]) -> MergeLoop:
        """Return the group in the life in which a member is to begin. Raises IsthmusError.

        A member that has begun stays in the group where it cannot begin as it says.
        """
        loop, began_seconds, seat.began_seconds = self._loop, seat.began_seconds, None
        try:
            if wanted is not None:
                following = await self._next.followed(self._merging, wanted, seat)
            elif len(others) != seat.other_trainers:
                raise ProtocolError(
                    f"a member tells the positions of {len(others)} other trainers; the group has {seat.other_trainers}"
                )
            else:
                following = await self._next.decided(self._merging, others, seat)
            if following is not None:
                return await self._live(following, seat)
            assert loop is not None, "a group goes on in a life that it is in"
            return loop
        finally:
            seat.began_seconds = began_seconds if self._loop is loop else None

    async def _live(self, following: NextLife, seat: Seat) -> MergeLoop:
        """Begin a life, for the member of a seat. The sessions of other members in the life before end; these begin again."""
        assert self._agreement is not None, "a session has a seat only under an agreement"
        name, config, life = self.config.name, self.config, following.life
        agreement = self._agreement  # that of an older checkpoint may be of more steps than a member has ended it after
        if not seat.decides:
            agreement = agreement.lasting(seat.session.request.group.steps)
        held = await self._build(agreement, len(config.ranks))
        whole = await self._next.weights(following, agreement, held, seat, self._lane)
        await self._store.written()
        self.seats.end_others(seat)
        if not self.seats.holds(seat):  # a session may end meanwhile
            raise self.seats.lost(seat.rank)
        self._store.begin_life(life, agreement.steps)
        step_log = None if self._step_logs is None else StepLog(self._step_logs, name, "group")
        if step_log is not None:
            step_log.rolled_back(life.first_step)
        self._forget_life()
        self._agreement = agreement
        merging = Merging(whole, agreement, self._lane, config, life, self.figures, step_log)
        self._loop = loop = MergeLoop(
            config, merging, self._store, self.seats, self._newcomers, self._late, self._alone, self._fail
        )
        loop.start()
        step, steps = life.first_step, agreement.steps
        _log.info("a group begins", group=name, life=life.number, step=step, size=config.size, steps=steps)
        return loop

    def _forget_life(self) -> None:
        """Forget the weights, and all that belongs to its life; checkpoints stay."""
        if self._loop is not None:
            self._loop.stop()
        self._loop = self._agreement = None
        self._newcomers.forget()
        self._next.forget_words()

    def _fail(self, failure: Exception) -> None:
        """Forget the weights, which may be updated in part: the members begin again, at the newest checkpoint."""
        self._forget_life()
        for session in self.seats.clear():
            session.worker.executor.fail(failure)

    async def _leave_first_weights(self, rank: int) -> None:
        """Forget a life that has begun with the first weights of a rank, which has gone before anything was updated.

        Nobody has anything of it, and its weights may be such that nobody can train on. The other members begin again.
        """
        merging = self._merging
        if merging is None or merging.life.origin is not None or not await merging.is_untouched():
            return
        if rank == merging.life.first_rank or not self.seats.sessions:
            self.seats.end_others(None)
            self._forget_life()
            self._store.forget_members()
            _log.warning("a group begins again: the member with its first weights has gone", group=self.config.name)

    async def _finish(self, rank: int) -> None:
        """Note that a member has all that the group has made, on disk before it is told so. After the last, it ends."""
        if (merging := self._merging) is None or not merging.is_done or self.seats.at(rank) is not None:
            return
        if await self._store.note_finished(rank, merging):
            self._forget_life()
            self._store.end_training()
            _log.info("a group has ended", group=self.config.name)
            self._forgetting = asyncio.create_task(self._forget_ended(), context=Context())

    async def _forget_ended(self) -> None:
        async with self._alone:
            try:
                await self._store.forget_ended()
            except IsthmusError as failure:
                _log.warning("checkpoints of a group not removed", group=self.config.name, reason=str(failure))
