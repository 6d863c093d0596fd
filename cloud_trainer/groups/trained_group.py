"""One group: its members' sessions by rank, and the gradients that they give, taken one after the other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from contextvars import Context
from pathlib import Path

import grpc
import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, StoredGroup
from cloud_trainer.groups.lives import Life, Position, check_number, common_checkpoints, next_number, read_positions
from cloud_trainer.groups.member_record import MemberRecord
from cloud_trainer.groups.member_seat import MemberSeat
from cloud_trainer.groups.merging import Copy, GroupFigures, Merging
from cloud_trainer.groups.newcomers import Newcomers
from cloud_trainer.groups.waits import Waits
from cloud_trainer.sessions.seat import Begun
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import CheckpointName
from shared.errors import ConfigError, IsthmusError, ProtocolError, StorageError
from shared.execution.group import MOST_BEHIND, Merged
from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import weights_of
from shared.execution.step_in_flight import Outgoing
from shared.placement import Cargo
from shared.registry import is_lossy
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import changing_blocks
from shared.training.step_log import StepLog
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_REACH_SECONDS = 30.0
"""Longest wait of one call for a step."""
_log = structlog.get_logger(__name__)
BuildHeld = Callable[[Agreement, int], Awaitable[HeldBlocks]]
"""Builder of the blocks of an agreement, for so many members, which need not fit the first weights."""
EndSession = Callable[[Session], Coroutine[None, None, None]]
"""Ends a session whose member has come back in another one, or has to."""


class TrainedGroup:
    """A group of the trainer's configuration. Used on the event loop."""

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
        self._store = store
        self._record = MemberRecord(config, store)
        self._threads = threads
        self._lane = threads.compute_lane(f"group {config.name}")
        self._build = build
        self._end_session = end_session
        self._step_logs = step_logs
        self.figures = GroupFigures()
        self._waits = Waits(config.leave_out_seconds)
        self._newcomers = Newcomers(config.name)
        self._seats: dict[int, MemberSeat] = {}
        self._agreement: Agreement | None = None
        self._merging: Merging | None = None
        self._has_ended = False
        """True while the checkpoints of a training that has ended are not removed."""
        self._alone = asyncio.Lock()
        self._given: asyncio.Queue[tuple[MemberSeat, Outgoing] | None] = asyncio.Queue()
        """Gradients in the order in which they came, as many as the windows of the members let begin; None for other news."""
        self._moved = asyncio.Event()
        """Set, and replaced, whenever the group may have come to another step."""
        self._merger: asyncio.Task[None] | None = None
        """The task that merges, from the first member on."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that remove checkpoints and end sessions."""

    @property
    def step(self) -> int:
        """Return the oldest step that is not done; 0 before the first."""
        return 0 if self._merging is None else self._merging.step

    @property
    def steps(self) -> int:
        """Return the steps that the group does; 0 before the first member."""
        return 0 if self._agreement is None else self._agreement.steps

    @property
    def life(self) -> int:
        """Return the number of its life; 0 before the first."""
        return 0 if self._merging is None else self._merging.life.number

    @property
    def members(self) -> list[int]:
        """List the ranks that take part in the present step; those of the first one before it begins."""
        return list(range(self.config.size)) if self._merging is None else sorted(self._merging.ranks)

    @property
    def missing(self) -> list[int]:
        """List the ranks for which the present step waits; all before the first step, and none after the last."""
        if self._merging is None:
            return list(range(self.config.size))
        return [] if self._merging.is_done else self._merging.missing()

    @property
    def sessions(self) -> dict[int, Session]:
        """Return the sessions of its members by rank."""
        return {rank: seat.session for rank, seat in list(self._seats.items()) if seat.session is not None}

    @property
    def attached(self) -> list[int]:
        """List the ranks whose members are linked now."""
        return sorted(rank for rank, session in self.sessions.items() if session.attachment.attached)

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
        self._check_free(wanted.rank)
        return MemberSeat(self, wanted.rank)

    async def occupy(self, seat: MemberSeat, session: Session) -> int:
        """Give a seat to the session that was built for it, and return the steps that the group does.

        A session that had the rank and has lost its member ends. Raises ConfigError, StatusError or StorageError, and changes
        nothing, for a member that would train something else.
        """
        async with self._alone:
            self._check_free(seat.rank)
            await self._forget_ended()
            if self._agreement is None:
                self._agreement = await self._record.stored_agreement()
            self._check_begun(seat.rank, self._agreement)
            if self._merger is None:
                # The log of a group names no session, not even that of the member whose call begins this.
                self._merger = asyncio.create_task(self._merge_all(), context=Context())
            changing, placement = changing_blocks(session.judge.chain), session.worker.placement
            theirs = Agreement.of(session.request, session.judge.recipe, placement, changing)
            agreement = self._agreement or theirs
            agreement.check(self.config.name, theirs)
            self._agreement = agreement
            before = self._seats.get(seat.rank)
            seat.session, self._seats[seat.rank] = session, seat
            if before is not None and before.session is not None:
                self._do(self._end_session(before.session))
            return agreement.steps

    async def position(self) -> Position:
        """Tell where the group is here. Raises StorageError."""
        names = await self._store.names()
        return Position(self.life, self.step, tuple(names))

    async def begin(self, seat: MemberSeat, wanted: pb.GroupBeginning, step: int) -> Begun:
        """Have the session of a seat begin. Repeating it has the member begin again. Raises IsthmusError.

        Where this trainer decides, it says at which step; elsewhere `step` is that one.
        """
        async with self._alone:
            session = self._seated(seat)
            if wanted.HasField("life") == _decides(session):
                raise ProtocolError(
                    "a member first asks the trainer of the first block that training changes, and tells the others its answer"
                )
            seat.is_taken = False
            if wanted.HasField("life"):
                merging = await self._following(Life.read(wanted.life), seat)
            else:
                others = _of_all_others(session, read_positions(wanted.others))
                merging = await self._deciding(others, seat, session)
                step = min([merging.step, *(other.step_in(merging.life) for other in others)])
            if (first_step := await self._newcomers.promise(merging, seat.rank, step)) is not None:
                self._given.put_nowait(None)
                return Begun(merging.life.message, first_step, joins=True)
            self._check_step(merging, step)
            beginning = await merging.take_seat(seat.rank, step)
            await session.worker.begin_in_group(*beginning)
            if self._session_of(seat) is None:
                await session.worker.stop()
                self._seated(seat)
            seat.is_taken = True
            await self._record.begin(seat.rank, merging)
            if merging.is_done:
                _log.warning("a member comes after the last step", group=self.config.name, rank=seat.rank)
            else:
                _log.info("a member begins", group=self.config.name, rank=seat.rank, step=beginning.step)
                if beginning.step > merging.ranks[seat.rank] and _is_lossy_from(session):
                    self.figures.residuals_lost[seat.rank] += 1
                    told = {"group": self.config.name, "rank": seat.rank, "step": beginning.step}
                    _log.info("what its codec had left of its gradients is lost", **told)
            return Begun(merging.life.message, beginning.step)

    async def leave(self, seat: MemberSeat, last_step: int) -> None:
        """Have the member of a seat take part in no step after its last one, wherever the group goes back to.

        It stays until the end where that is the last of all. Raises StatusError for a session that has not begun and where that
        cannot be written, and ProtocolError for a step that cannot be its last.
        """
        async with self._alone:
            self._seated(seat)
            if (merging := self._merging) is None or not seat.is_taken:
                raise StatusError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"rank {seat.rank} has not begun in group {self.config.name!r}, so that it has no last step there",
                )
            if last_step + 1 >= merging.agreement.steps:
                return
            await self._hand_out(merging, await merging.leave(seat.rank, last_step + 1))
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
        """Have the member of a seat take part from a step of a life on, at which it begins. Raises as `Newcomers.join` does."""
        async with self._alone:
            self._seated(seat)
            if (merging := self._merging) is None or self.life != life:
                raise self._other_life(f"life {life} has ended")
            merged = await self._newcomers.join(merging, seat.rank, first_step)
            seat.is_taken = False
            await self._record.try_keep(merging)
            _log.info("a member joins", group=self.config.name, rank=seat.rank, first_step=first_step)
            await self._hand_out(merging, merged)
            self._given.put_nowait(None)

    async def reach(self, life: int, step: int) -> None:
        """Wait until the group is at a step of a life. Raises StatusError where it is not in some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REACH_SECONDS):
                while self.life == life and self.step < step:
                    await self._moved.wait()
        if self.life != life or self.step < step:
            raise self._other_life(f"it is at step {self.step}, and not yet at step {step} of life {life}")

    def give(self, seat: MemberSeat, one: Outgoing) -> None:
        """Take the gradient of a block that the session of a seat has."""
        self._given.put_nowait((seat, one))

    async def vacate(self, seat: MemberSeat) -> None:
        """Note that the session of a seat has ended. The group waits for its member, unless all is done."""
        if (session := self._session_of(seat)) is None:
            return
        del self._seats[seat.rank]
        if self._newcomers.lose(seat.rank):
            self._given.put_nowait(None)
        if self._merging is None and not self._seats:
            self._agreement = None
        if session.forgotten:
            async with self._alone:
                await self._finish(seat.rank)

    async def _finish(self, rank: int) -> None:
        """Note that a member has all that the group has made, on disk before it is told so."""
        if (merging := self._merging) is None or not merging.is_done or rank in self._seats:
            return
        if await self._record.finish(rank, merging):
            self._end_training()

    async def close(self) -> None:
        """Take no more gradients, and write a last checkpoint, if the group is between two steps."""
        if self._merger is not None:
            self._merger.cancel()
            await asyncio.wait({self._merger})
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._alone:
            if self._merging is not None and (copied := await self._merging.copy_now()) is not None:
                await self._save(self._merging, copied)
            await self._store.written()

    def _check_free(self, rank: int) -> None:
        if (seat := self._seats.get(rank)) is not None and _is_attached(seat):
            raise StatusError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"rank {rank} of group {self.config.name!r} is taken by a member that is linked now; give each device a rank "
                "of its own",
            )

    def _session_of(self, seat: MemberSeat) -> Session | None:
        """Return the session of a seat; None if another session has its rank since."""
        return seat.session if self._seats.get(seat.rank) is seat else None

    def _seated(self, seat: MemberSeat) -> Session:
        """Return the session of a seat. Raises StatusError if another session has its rank since."""
        if (session := self._session_of(seat)) is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND, f"rank {seat.rank} of group {self.config.name!r} is another session's now"
            )
        return session

    async def _deciding(self, others: Collection[Position], seat: MemberSeat, session: Session) -> Merging:
        """Return the group in the life that goes on at all trainers; it is another one where any of them has lost its state."""
        merging = self._merging
        if merging is not None and not any(other.has_lost(merging.life, merging.step) for other in others):
            return merging
        here = await self.position()
        members = await self._record.to_go_on() if merging is None else merging.staying
        number, steps = next_number(here, others), self.config.checkpoint_steps
        for name in common_checkpoints(here, others):
            if (stored := await self._store.load(name)) is not None:
                return await self._live(Life(number, name, seat.rank, steps, members), stored, session, seat)
        self._check_begun(seat.rank, None)
        return await self._live(Life(number, None, seat.rank, steps, members), None, session, seat)

    async def _following(self, life: Life, seat: MemberSeat) -> Merging:
        """Return the group in a life that another trainer has begun. Raises StatusError where it cannot be in that."""
        if self._merging is not None and self.life == life.number:
            return self._merging
        if life.number < self.life:
            raise self._other_life(f"life {life.number} has ended")
        check_number(life.number, await self.position())
        self._check_ranks(life.members)
        if life.origin is not None:
            if (stored := await self._store.load(life.origin)) is None:
                raise self._other_life(f"checkpoint {life.origin} is not here")
            return await self._live(life, stored, None, seat)
        first = self._seats.get(life.first_rank)
        if first is None or first.session is None or first.is_taken:
            raise self._other_life(f"it begins with the weights of rank {life.first_rank}, which is not here")
        return await self._live(life, None, first.session, seat)

    async def _live(self, life: Life, stored: StoredGroup | None, first: Session | None, seat: MemberSeat) -> Merging:
        """Begin a life with a checkpoint, or else with the weights of a session, which are the first.

        The sessions of other members in the life before end, because these have to begin again.
        """
        assert self._agreement is not None, "a session has a seat only under an agreement"
        name, agreement = self.config.name, self._agreement if stored is None else stored.agreement
        held = await self._build(agreement, len(self.config.ranks))
        if stored is not None:
            whole = await self._lane.aside(GroupWeights.restored, held, agreement.weights_codec, stored.states)
        else:
            assert first is not None, "the first weights are those of a session"
            blocks = first.blocks.held.chain.blocks
            weights = await self._threads.compute_lane(first.id).aside(
                lambda: {block: weights_of(blocks[block]) for block in agreement.blocks}
            )
            for block, tensors in weights.items():
                await self._lane.aside(held.take_weights, block, tensors)
            whole = GroupWeights(held, agreement.weights_codec)
        await self._store.go_back(life.origin)
        for other in [other for other in self._seats.values() if other is not seat and other.is_taken]:
            self._end(other)
        self._seated(seat)  # a session may end meanwhile
        self._record.begin_life(life, agreement.steps)
        step_log = None if self._step_logs is None else StepLog(self._step_logs, name, "group")
        if step_log is not None:
            step_log.rolled_back(life.first_step)
        self._agreement = agreement
        self._waits.forget()
        self._newcomers.forget()
        self._merging = Merging(whole, agreement, self._lane, self.config, life, self.figures, step_log)
        step, steps = life.first_step, agreement.steps
        _log.info("a group begins", group=name, life=life.number, step=step, size=self.config.size, steps=steps)
        return self._merging

    def _check_ranks(self, ranks: Collection[int]) -> None:
        """Refuse members that the group cannot have. Raises ProtocolError."""
        if any(rank not in self.config.ranks for rank in ranks):
            raise ProtocolError(
                f"group {self.config.name!r} cannot have a member of rank {max(ranks)}; its ranks are 0 to "
                f"{self.config.ranks[-1]}"
            )

    def _check_begun(self, rank: int, agreement: Agreement | None) -> None:
        """Refuse a rank that can only join where there is nothing that it could join. Raises StatusError."""
        if agreement is None and rank >= self.config.size:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"group {self.config.name!r} begins with ranks 0 to {self.config.size - 1}, and has not begun; rank {rank} can "
                "join then",
            )

    def _end(self, seat: MemberSeat) -> None:
        """End the session of a taken seat, so that its member begins again in another one."""
        assert seat.session is not None, "a seat is taken by a session"
        del self._seats[seat.rank]
        self._do(self._end_session(seat.session))

    def _check_step(self, merging: Merging, step: int) -> None:
        """Refuse a step at which a member cannot begin here any more. Raises StatusError."""
        if not merging.life.first_step <= step <= merging.step or step < merging.step - merging.agreement.staleness - 1:
            raise self._other_life(f"it is at step {merging.step}, and no member can begin at step {step}")

    def _other_life(self, why: str) -> StatusError:
        """Build the refusal for a member that has to ask again where the group goes on."""
        return StatusError(
            grpc.StatusCode.UNAVAILABLE, f"group {self.config.name!r} is elsewhere at this trainer: {why}"
        )

    async def _merge_all(self) -> None:
        while True:
            given: tuple[MemberSeat, Outgoing] | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left(time.monotonic())):
                    given = await self._given.get()
            async with self._alone:
                if (merging := self._merging) is not None:
                    await self._go_on(merging, given)
            self._moved.set()
            self._moved = asyncio.Event()

    async def _go_on(self, merging: Merging, given: tuple[MemberSeat, Outgoing] | None) -> None:
        """Take a gradient, and go on without those that are waited for no longer."""
        try:
            if given is not None:
                await self._merge(merging, *given)
            for step, block in self._waits.over(time.monotonic()):
                await self._hand_out(merging, await merging.leave_out(step, block))
            await self._hand_out(merging, await self._newcomers.lapse(merging, time.monotonic()))
            self._waits.note(merging.step, merging.held_up(), time.monotonic())
        except Exception as failure:
            _log.exception("a group has failed", group=self.config.name)
            self._fail(failure)

    def _seconds_left(self, now: float) -> float | None:
        """Return the time until there is something to do for a block that waits, or a promise."""
        left = (self._waits.seconds_left(now), self._newcomers.seconds_left(now))
        return min((seconds for seconds in left if seconds is not None), default=None)

    async def _merge(self, merging: Merging, seat: MemberSeat, one: Outgoing) -> None:
        session = self._session_of(seat)
        if session is None or not seat.is_taken:
            return  # its member has come back in another session
        if self.config.leave_out_seconds is not None and one.step < merging.step - MOST_BEHIND:
            _log.warning(
                "a member is too late, and begins again", group=self.config.name, rank=seat.rank, step=one.step
            )
            self._end(seat)
            return
        try:
            await self._hand_out(merging, await merging.merge(seat.rank, one))
        except ProtocolError as refusal:
            session.worker.run.fail(refusal)

    async def _hand_out(self, merging: Merging, merged: list[Merged]) -> None:
        """Have members take new weights, once a copy of all is written if they are the last ones."""
        if (copied := merging.take_copy()) is not None:
            await self._save(merging, copied)
            if merging.is_done:
                await self._store.written()  # a member that is done goes, and could not do these steps again
        for each in merged:
            receiver = self._seats.get(each.rank)
            if receiver is not None and receiver.session is not None and receiver.is_taken:
                receiver.session.worker.run.take_merged(each.step, each.block, each.weights)

    def _fail(self, failure: Exception) -> None:
        """Forget the weights, which may be updated in part: the members begin again, at the newest checkpoint."""
        self._merging = self._agreement = None
        self._waits.forget()
        self._newcomers.forget()
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            if seat.session is not None:
                seat.session.worker.run.fail(failure)

    async def _save(self, merging: Merging, copied: Copy) -> None:
        await self._record.try_keep(merging)
        name = CheckpointName(merging.life.number, copied.step)
        await self._store.begin_saving(name, merging.agreement, copied.state, merging.staying)

    def _end_training(self) -> None:
        """Forget all of a training that every member has the result of."""
        self._merging = self._agreement = None
        self._record.end_training()
        self._has_ended = True
        _log.info("a group has ended", group=self.config.name)
        self._do(self._forget())

    def _do(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work, context=Context()))
        task.add_done_callback(self._tasks.discard)

    async def _forget(self) -> None:
        async with self._alone:
            try:
                await self._forget_ended()
            except IsthmusError as failure:
                _log.warning("checkpoints of a group not removed", group=self.config.name, reason=str(failure))

    async def _forget_ended(self) -> None:
        """Remove the checkpoints of a training that has ended, so that no other begins with them. Raises StorageError."""
        if self._has_ended:
            await self._record.forget()
            self._has_ended = False


def _decides(session: Session) -> bool:
    """Tell whether this trainer decides when a life of the session's group begins: it owns the first block that changes."""
    return _owners(session)[0] == session.worker.name


def _owners(session: Session) -> list[str]:
    """List the trainers that have a part of a session's group, in the order of their blocks."""
    placement = session.worker.placement
    return list(dict.fromkeys(placement.owner(block) for block in changing_blocks(session.judge.chain)))


def _of_all_others(session: Session, positions: list[Position]) -> list[Position]:
    """Refuse positions of more or fewer trainers than have a part of the group beside this one. Raises ProtocolError."""
    if len(positions) != (others := len(_owners(session)) - 1):
        raise ProtocolError(f"a member tells the positions of {len(positions)} other trainers; the group has {others}")
    return positions


def _is_lossy_from(session: Session) -> bool:
    """Tell whether a member's codec takes anything from the gradients that it sends here."""
    codecs = session.worker.placement.codecs
    return any(route.cargo is Cargo.WEIGHT_GRADIENT and is_lossy(name) for route, name in codecs.items())


def _is_attached(seat: MemberSeat) -> bool:
    return seat.session is not None and seat.session.attachment.attached
