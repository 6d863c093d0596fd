"""One group: its members' sessions by rank, and the gradients that they give, taken one after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context

import grpc
import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.merging import Copy, Merging
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.errors import ConfigError, IsthmusError, ProtocolError, StorageError
from shared.execution.shared_blocks import weights_of
from shared.execution.step_in_flight import Outgoing
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import changing_blocks, put_back
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
BuildHeld = Callable[[Agreement, int], Awaitable[HeldBlocks]]
"""Builder of all blocks of the model of an agreement, for so many members, which need not fit the first weights."""


class MemberSeat:
    """The place of one member's session; see `Seat`."""

    def __init__(self, group: "TrainedGroup", rank: int) -> None:
        self._group = group
        self.rank = rank
        self.session: Session | None = None
        """The session, once it is built."""
        self.is_taken = False
        """True once the session has begun in the group."""

    def give(self, one: Outgoing) -> None:
        """Give as `Seat` says."""
        self._group.give(self, one)

    async def occupy(self, session: Session) -> int:
        """Belong to a session that was built for it; see `TrainedGroup.occupy`."""
        return await self._group.occupy(self, session)

    async def take(self) -> None:
        """Begin as `Seat` says."""
        await self._group.begin(self)

    def vacate(self) -> None:
        """End as `Seat` says."""
        self._group.vacate(self)


class TrainedGroup:
    """A group of the trainer's configuration. Used on the event loop."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        threads: TrainerThreads,
        build: BuildHeld,
        end_session: Callable[[Session], Awaitable[None]],
    ) -> None:
        """end_session: ends a session whose member has come back in another one."""
        self.config = config
        self._store = store
        self._threads = threads
        self._lane = threads.compute_lane(f"group {config.name}")
        self._build = build
        self._end_session = end_session
        self._seats: dict[int, MemberSeat] = {}
        self._agreement: Agreement | None = None
        self._merging: Merging | None = None
        self._finished: set[int] = set()
        """Ranks that have all that the group has made."""
        self._has_ended = False
        """True while the checkpoints of a training that has ended are not removed."""
        self._alone = asyncio.Lock()
        self._given: asyncio.Queue[tuple[MemberSeat, Outgoing]] = asyncio.Queue()
        """Gradients in the order in which they came: as many as the windows of the members let begin."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The task that merges, from the first member on, and those that remove checkpoints."""
        self._saving: asyncio.Task[None] | None = None

    @property
    def step(self) -> int:
        """Return the oldest step that is not done; 0 before the first."""
        return 0 if self._merging is None else self._merging.step

    @property
    def attached(self) -> list[int]:
        """List the ranks whose members are linked now."""
        return sorted(rank for rank, seat in list(self._seats.items()) if _is_attached(seat))

    def seat_for(self, wanted: pb.GroupSeat) -> MemberSeat:
        """Return a seat for a session that is about to be built. Raises ConfigError or StatusError where there is none."""
        name, size = self.config.name, self.config.size
        if wanted.size not in (0, size):
            raise ConfigError(f"group {name!r} has {size} members, and this one expects {wanted.size}")
        if wanted.rank >= size:
            raise ConfigError(f"rank {wanted.rank} is none of group {name!r}; the ranks are 0 to {size - 1}")
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
            if self._agreement is None and (stored := await self._store.newest()) is not None:
                self._agreement = stored.agreement
            if not self._tasks:
                self._do(self._merge_all())
            theirs = Agreement.of(session.request, session.judge.recipe, session.worker.placement.staleness)
            agreement = self._agreement or theirs
            agreement.check(self.config.name, theirs)
            self._agreement = agreement
            before = self._seats.get(seat.rank)
            seat.session, self._seats[seat.rank] = session, seat
            if before is not None and before.session is not None:
                await self._end_session(before.session)
            return agreement.steps

    async def begin(self, seat: MemberSeat) -> None:
        """Have the session of a seat begin, once. Raises IsthmusError."""
        async with self._alone:
            session = self._seated(seat)
            if seat.is_taken:
                return
            if self._merging is None:
                self._merging = await self._begun(session)
                self._agreement = self._merging.agreement
                self._seated(seat)  # a session may end meanwhile
            step, weights = await self._merging.take_seat(seat.rank)
            await session.worker.begin_in_group(step, weights)
            if self._session_of(seat) is None:
                await session.worker.stop()
                self._seated(seat)
            seat.is_taken = True
            self._finished.discard(seat.rank)
            if self._merging.is_done:
                _log.warning("a member comes after the last step", group=self.config.name, rank=seat.rank)
            else:
                _log.info("a member begins", group=self.config.name, rank=seat.rank, step=step)

    def give(self, seat: MemberSeat, one: Outgoing) -> None:
        """Take the gradient of a block that the session of a seat has."""
        self._given.put_nowait((seat, one))

    def vacate(self, seat: MemberSeat) -> None:
        """Note that the session of a seat has ended. The group waits for its member, unless all is done."""
        if (session := self._session_of(seat)) is None:
            return
        del self._seats[seat.rank]
        if self._merging is None and not self._seats:
            self._agreement = None
        if self._merging is not None and self._merging.is_done and session.forgotten:
            self._finished.add(seat.rank)
            if len(self._finished) == self.config.size:
                self._end_training()

    async def close(self) -> None:
        """Take no more gradients, and write a last checkpoint, if the group is between two steps."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._alone:
            if self._merging is not None and (copied := await self._merging.copy_now()) is not None:
                await self._save(self._merging, copied)
            await self._written()

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

    async def _begun(self, session: Session) -> Merging:
        """Begin the group with the weights of its checkpoint, or else with those of a session, which are the first."""
        assert self._agreement is not None, "a session has a seat only under an agreement"
        config, agreement = self.config, self._agreement
        stored, held = await self._store.newest(), await self._build(agreement, config.size)
        if stored is not None:
            await self._lane.aside(put_back, held, held.indices, stored.states)
            first = stored.step
        else:
            blocks = session.blocks.held.chain.blocks
            changing = changing_blocks(held.chain)
            weights = await self._threads.compute_lane(session.id).aside(
                lambda: {block: weights_of(blocks[block]) for block in changing}
            )
            for block, tensors in weights.items():
                await self._lane.aside(held.take_weights, block, tensors)
            first = 0
        _log.info("a group begins", group=config.name, step=first, size=config.size, steps=agreement.steps)
        return Merging(held, agreement, self._lane, config, first)

    async def _merge_all(self) -> None:
        while True:
            seat, one = await self._given.get()
            async with self._alone:
                session = self._session_of(seat)
                if session is None or self._merging is None:
                    continue  # its member has come back in another session, or the group has failed
                try:
                    await self._merge(self._merging, seat, one)
                except ProtocolError as refusal:
                    session.worker.run.fail(refusal)
                except Exception as failure:
                    _log.exception("a group has failed", group=self.config.name)
                    self._fail(failure)

    async def _merge(self, merging: Merging, seat: MemberSeat, one: Outgoing) -> None:
        merged = await merging.merge(seat.rank, one)
        if (copied := merging.take_copy()) is not None:
            await self._save(merging, copied)
            if merging.is_done:
                await self._written()  # a member that is done goes, and could not do these steps again
        for each in merged:
            receiver = self._seats.get(each.rank)
            if receiver is not None and receiver.session is not None and receiver.is_taken:
                receiver.session.worker.run.take_merged(each.step, each.block, each.weights)

    def _fail(self, failure: Exception) -> None:
        """Forget the weights, which may be updated in part: the members begin again, at the newest checkpoint."""
        self._merging = self._agreement = None
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            if seat.session is not None:
                seat.session.worker.run.fail(failure)

    async def _save(self, merging: Merging, copied: Copy) -> None:
        """Begin to write a copy, once the one before is written."""
        await self._written()
        self._saving = asyncio.create_task(self._write(merging, copied))

    async def _written(self) -> None:
        """Wait until no checkpoint is being written. Writing goes on even where its waiter is cancelled."""
        if self._saving is not None:
            await asyncio.wait({self._saving})

    async def _write(self, merging: Merging, copied: Copy) -> None:
        try:
            await self._store.save(copied.step, merging.agreement, copied.state)
            _log.info("checkpoint of a group", group=self.config.name, step=copied.step)
        except StorageError as failure:
            _log.warning("checkpoint of a group not written", group=self.config.name, reason=str(failure))
        except Exception:  # nobody reads the result of this task
            _log.exception("checkpoint of a group not written", group=self.config.name)

    def _end_training(self) -> None:
        """Forget all of a training that every member has the result of."""
        self._merging = self._agreement = None
        self._finished.clear()
        self._has_ended = True
        _log.info("a group has ended", group=self.config.name)
        self._do(self._forget())

    def _do(self, work: Coroutine[None, None, None]) -> None:
        # The log of a group names no session, not even that of the member whose call begins this.
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
            await self._store.forget()
            self._has_ended = False


def _is_attached(seat: MemberSeat) -> bool:
    return seat.session is not None and seat.session.attachment.attached
