"""One group of the trainer's configuration, and what the sessions of its members ask of it."""

import asyncio
import time
from contextvars import Context
from pathlib import Path

import grpc
import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.group_training import BuildHeld, GroupTraining
from cloud_trainer.groups.lives import Life, read_positions
from cloud_trainer.groups.member_seat import MemberSeat
from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.merging import GroupFigures, Merging
from cloud_trainer.groups.owners import decides, of_all_others
from cloud_trainer.groups.seats import EndSession, Seats
from cloud_trainer.groups.step_watch import StepWatch
from cloud_trainer.sessions.seat import Begun
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.errors import ConfigError, IsthmusError, ProtocolError, StorageError
from shared.execution.step_in_flight import Parcel
from shared.placement import Cargo
from shared.registry import codec_spec
from shared.training.held_state import changing_blocks
from shared.transport.auth.callers import caller
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


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
        self._seats = Seats(config.name, end_session)
        self._training = GroupTraining(config, store, self._seats, threads, build, step_logs)
        self._record = self._training.record
        self._alone = asyncio.Lock()
        self._loop = MergeLoop(config, store, self._seats, self._training, self._alone)
        self._watch = StepWatch(config, self._seats, self._training, self._loop, self._alone)
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
    def sessions(self) -> dict[int, Session]:
        """Return the sessions of its members by rank."""
        return self._seats.sessions

    @property
    def attached(self) -> list[int]:
        """List the ranks whose members are linked now."""
        return self._seats.attached

    @property
    def figures(self) -> GroupFigures:
        """Return its counts by rank."""
        return self._training.figures

    def admits(self, subject: str) -> bool:
        """Tell whether a subject may be a member."""
        return not self.config.subjects or subject in self.config.subjects

    def seat_for(self, wanted: pb.GroupSeat) -> MemberSeat:
        """Return a seat for a session that is about to be built. Raises ConfigError or StatusError where there is none."""
        name, size = self.config.name, self.config.size
        if wanted.size not in (0, size):
            raise ConfigError(f"group {name!r} has {size} members, and this one expects {wanted.size}")
        if wanted.rank not in self.config.ranks:
            raise ConfigError(
                f"rank {wanted.rank} is none of group {name!r}; the ranks are 0 to {self.config.ranks[-1]}"
            )
        self._seats.check_free(wanted.rank)
        return MemberSeat(self, wanted.rank, caller().subject)

    async def occupy(self, seat: MemberSeat, session: Session) -> int:
        """Give a seat to the session that was built for it, and return the steps that the group does.

        A session that had the rank and has lost its member ends. Raises ConfigError, StatusError or StorageError, and changes
        nothing, for a member that would train something else.
        """
        async with self._alone:
            self._seats.check_free(seat.rank)
            changing, placement = changing_blocks(session.judge.chain), session.worker.placement
            theirs = Agreement.of(session.request, session.judge.recipe, placement, changing)
            agreement = await self._training.agree(seat, theirs)
            self._loop.begin()
            self._watch.begin()
            self._seats.put(seat, session)
            return agreement.steps

    async def position(self) -> pb.GroupPosition:
        """Tell where the group is here. Raises StorageError."""
        return (await self._training.position()).message

    async def begin(self, seat: MemberSeat, wanted: pb.GroupBeginning, step: int) -> Begun:
        """Have the session of a seat begin. Repeating it has the member begin again. Raises IsthmusError.

        Where this trainer decides, it says at which step; elsewhere `step` is that one.
        """
        async with self._alone:
            session, training = self._seats.seated(seat), self._training
            if wanted.HasField("life") == decides(session):
                raise ProtocolError(
                    "a member first asks the trainer of the first block that training changes, and tells the others its answer"
                )
            merging, step = await self._found(seat, session, wanted, step)
            if (first_step := await training.newcomers.promise(merging, seat.rank, step, seat.subject)) is not None:
                seat.is_taken, seat.may_join = False, True
                self._loop.look_again()
                return Begun(merging.life.message, first_step, joins=True)
            training.check_step(merging, step)
            seat.is_taken = seat.may_join = False
            beginning = await merging.take_seat(seat.rank, step)
            seat.has_trained = True
            await session.worker.begin_in_group(*beginning)
            if self._seats.session_of(seat) is None:
                await session.worker.stop()
                self._seats.seated(seat)
            seat.is_taken, seat.begun_seconds = True, time.monotonic()
            await self._record.begin(seat.rank, seat.subject, merging)
            if merging.is_done:
                _log.warning("a member comes after the last step", group=self.config.name, rank=seat.rank)
            else:
                _log.info("a member begins", group=self.config.name, rank=seat.rank, step=beginning.step)
                if beginning.step > merging.ranks[seat.rank] and _is_lossy_from(session):
                    self.figures.residuals_lost[seat.rank] += 1
                    told = {"group": self.config.name, "rank": seat.rank, "step": beginning.step}
                    _log.info("what its codec had left of its gradients is lost", **told)
            _, awaited = await merging.awaited()
            away = set(awaited).difference(self.attached, [seat.rank])
            return Begun(merging.life.message, beginning.step, awaited=sorted(away))

    async def _found(
        self, seat: MemberSeat, session: Session, wanted: pb.GroupBeginning, step: int
    ) -> tuple[Merging, int]:
        """Return the group in the life in which a member is to begin, and the step of all trainers. Raises IsthmusError.

        A member that has begun stays in the group where it cannot begin as it says.
        """
        training, before = self._training, self._training.merging
        has_begun, seat.is_taken = seat.is_taken, False
        try:
            if wanted.HasField("life"):
                return await training.following(Life.read(wanted.life, len(self.config.ranks)), seat), step
            others = of_all_others(session, read_positions(wanted.others))
            merging = await training.deciding(others, seat)
        finally:
            seat.is_taken = has_begun and training.merging is before
        return merging, min([merging.step, *(other.step_in(merging.life) for other in others)])

    async def leave(self, seat: MemberSeat, last_step: int) -> None:
        """Have the member of a seat take part in no step after its last one, wherever the group goes back to.

        It stays until the end where that is the last of all. Raises StatusError for a session that has not begun and where that
        cannot be written, and ProtocolError for a step that cannot be its last.
        """
        async with self._alone:
            self._seats.seated(seat)
            if (merging := self._training.merging) is None or not seat.is_taken:
                raise StatusError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"rank {seat.rank} has not begun in group {self.config.name!r}, so that it has no last step there",
                )
            if last_step + 1 >= merging.agreement.steps:
                return
            await self._loop.hand_out(merging, await merging.leave(seat.rank, last_step + 1))
            try:
                await self._record.keep(merging)
            except StorageError as failure:  # until it is written, the member has its last step still before it
                raise StatusError(
                    grpc.StatusCode.UNAVAILABLE,
                    f"group {self.config.name!r} cannot note that rank {seat.rank} leaves: {failure}",
                ) from failure
            _log.info("a member leaves", group=self.config.name, rank=seat.rank, last_step=last_step)
            if not merging.staying:
                _log.warning("nobody goes on with a group", group=self.config.name, step=last_step + 1)

    async def join(self, seat: MemberSeat, life: int, first_step: int) -> None:
        """Have the member of a seat take part from a step of a life on, at which it begins. Raises as `Newcomers.join` does.

        Raises StatusError for one that was not told to join.
        """
        async with self._alone:
            self._seats.seated(seat)
            training = self._training
            if not seat.may_join:
                raise StatusError(
                    grpc.StatusCode.FAILED_PRECONDITION,
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
        """Wait until the group is at a step of a life. Raises StatusError where it is not in some seconds."""
        await self._loop.reach(life, step)

    def give(self, seat: MemberSeat, one: Parcel) -> None:
        """Take the gradient of a slice that the session of a seat has."""
        self._loop.give(seat, one)

    async def vacate(self, seat: MemberSeat) -> None:
        """Note that the session of a seat has ended. The group waits for its member, unless all is done."""
        self._loop.drop(seat)
        if (session := self._seats.session_of(seat)) is None:
            return
        self._seats.remove(seat)
        training = self._training
        if training.newcomers.lose(seat.rank):
            self._loop.look_again()
        async with self._alone:
            if session.forgotten:
                await self._finish(seat.rank)
            await training.leave_first_weights(seat.rank)
            if training.merging is None and not self.sessions:
                training.agreement = None

    async def close(self) -> None:
        """Take no more gradients, and write a last checkpoint, if the group is between two steps."""
        await self._watch.stop()
        await self._loop.stop()
        await self._seats.close()
        if self._forgetting is not None:
            await asyncio.wait({self._forgetting})
        async with self._alone:
            await self._loop.keep()

    async def _finish(self, rank: int) -> None:
        """Note that a member has all that the group has made, on disk before it is told so."""
        if (merging := self._training.merging) is None or not merging.is_done or rank in self.sessions:
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


def _is_lossy_from(session: Session) -> bool:
    """Tell whether a member's codec takes anything from the gradients that it sends here."""
    codecs = session.worker.placement.codecs
    return any(route.cargo is Cargo.WEIGHT_GRADIENT and codec_spec(name).lossy for route, name in codecs.items())
