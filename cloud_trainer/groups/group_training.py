"""The training of a group at this trainer: the agreement of its members, its life, and how another one begins."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, StoredGroup
from cloud_trainer.groups.lives import Life, Position, check_number, common_checkpoints, next_number
from cloud_trainer.groups.member_record import MemberRecord
from cloud_trainer.groups.merging import GroupFigures, Merging
from cloud_trainer.groups.newcomers import Newcomers
from cloud_trainer.groups.refusals import NotNowError
from cloud_trainer.groups.seats import Seat, Seats
from cloud_trainer.groups.waits import Waits
from cloud_trainer.groups.witnesses import GoingBack, Witnesses
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import CheckpointName
from shared.errors import ConfigError, IsthmusError, ProtocolError
from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import weights_of
from shared.training.block_state import BlockTensors
from shared.training.finite import are_finite
from shared.training.held_blocks import HeldBlocks
from shared.training.step_log import StepLog

_log = structlog.get_logger(__name__)
BuildHeld = Callable[[Agreement, int], Awaitable[HeldBlocks]]
"""Builder of the blocks of an agreement, for so many members, which need not fit the first weights."""


class GroupTraining:
    """The training of one group. Used on the event loop, one call at a time."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        seats: Seats,
        threads: TrainerThreads,
        build: BuildHeld,
        step_logs: Path | None = None,
    ) -> None:
        """step_logs: the folder for a log of every update; None for no log."""
        self._config = config
        self._store = store
        self._seats = seats
        self._threads = threads
        self._lane = threads.compute_lane(f"group {config.name}")
        self._build = build
        self._step_logs = step_logs
        self.record = MemberRecord(config, store)
        self.figures = GroupFigures()
        self.waits = Waits(config.leave_out_seconds)
        self.newcomers = Newcomers(config.name)
        self._witnesses = Witnesses(config.name, seats, config.leave_out_seconds)
        self.agreement: Agreement | None = None
        """The training of all; None before the first member."""
        self.merging: Merging | None = None
        """The group in its life; None before the first."""
        self._has_ended = False
        """True while the checkpoints of a training that has ended are not removed."""

    @property
    def step(self) -> int:
        """Return the oldest step that is not done; 0 before the first."""
        return 0 if self.merging is None else self.merging.step

    @property
    def life(self) -> int:
        """Return the number of its life; 0 before the first."""
        return 0 if self.merging is None else self.merging.life.number

    async def agree(self, seat: Seat, theirs: Agreement) -> Agreement:
        """Return the agreement of all, if the member of a seat would train the same, and the rank is nobody else's.

        Raises IsthmusError otherwise.
        """
        await self.forget_ended()
        if self.agreement is None:
            self.agreement = await self.record.stored_agreement()
        self.record.check_owner(seat.rank, seat.subject, self.merging)
        self._check_begun(seat.rank, self.agreement)
        agreement = self.agreement or theirs
        agreement.check(self._config.name, theirs)
        self.agreement = agreement
        return agreement

    async def position(self) -> Position:
        """Tell where the group is here. Raises StorageError."""
        names = await self._store.names()
        return Position(self.life, self.step, tuple(names))

    async def deciding(self, others: Collection[Position], seat: Seat) -> Merging:
        """Return the group in the life that goes on at all trainers; it is another one where any of them has lost its state.

        Raises NotNowError while others have not said so, if steps would be given up.
        """
        merging = self.merging
        if merging is not None and not any(other.has_lost(merging.life, merging.step) for other in others):
            return merging
        here = await self.position()
        members = await self._members()
        number, steps = next_number(here, others), self._config.checkpoint_steps
        for name in common_checkpoints(here, others):
            if (stored := await self._store.load(name)) is not None:
                self._check_word(seat, GoingBack(0, name.step), here, name, members)
                return await self._live(Life(number, name, seat.rank, steps, members), stored, seat, seat)
        self._check_begun(seat.rank, None)
        self._check_word(seat, GoingBack(0, 0), here, None, members)
        return await self._live(Life(number, None, seat.rank, steps, members), None, seat, seat)

    async def following(self, life: Life, seat: Seat) -> Merging:
        """Return the group in a life that another trainer has begun. Raises NotNowError where it cannot be in that."""
        if self.merging is not None and self.life == life.number:
            return self.merging
        if life.number < self.life:
            raise self.elsewhere(f"life {life.number} has ended")
        check_number(life.number, here := await self.position())
        self._check_ranks(life.members)
        first = stored = None
        if life.origin is not None:
            if (stored := await self._store.load(life.origin)) is None:
                raise self.elsewhere(f"checkpoint {life.origin} is not here")
        elif (first := self._seats.at(life.first_rank)) is None or first.began_seconds is not None:
            raise self.elsewhere(f"it begins with the weights of rank {life.first_rank}, which is not here")
        said = GoingBack(life.number, life.first_step)
        self._check_word(seat, said, here, life.origin, await self._members())
        return await self._live(life, stored, first, seat)

    def check_step(self, merging: Merging, step: int) -> None:
        """Refuse a step at which a member cannot begin here any more. Raises NotNowError."""
        if not merging.life.first_step <= step <= merging.step or step < merging.step - merging.agreement.staleness - 1:
            raise self.elsewhere(f"it is at step {merging.step}, and no member can begin at step {step}")

    def elsewhere(self, why: str) -> NotNowError:
        """Build the refusal for a member that has to ask again where the group goes on."""
        return NotNowError(f"group {self._config.name!r} is elsewhere at this trainer: {why}")

    def forget(self) -> None:
        """Forget the weights, and all that belongs to its life; checkpoints stay."""
        self.merging = self.agreement = None
        self.waits.forget()
        self.newcomers.forget()
        self._witnesses.forget()

    async def leave_first_weights(self, rank: int) -> None:
        """Forget a life that has begun with the first weights of a rank, which has gone before anything was updated.

        Nobody has anything of it, and its weights may be such that nobody can train on. The other members begin again.
        """
        merging = self.merging
        if merging is None or merging.life.origin is not None or not await merging.is_untouched():
            return
        if rank == merging.life.first_rank or not self._seats.sessions:
            self._seats.end_others(None)
            self.forget()
            self.record.end_training()
            _log.warning("a group begins again: the member with its first weights has gone", group=self._config.name)

    def end(self) -> None:
        """Forget all of a training that every member has the result of. `forget_ended` removes its checkpoints."""
        self.forget()
        self.record.end_training()
        self._has_ended = True
        _log.info("a group has ended", group=self._config.name)

    async def forget_ended(self) -> None:
        """Remove the checkpoints of a training that has ended, so that no other begins with them. Raises StorageError."""
        if self._has_ended:
            await self.record.forget()
            self._has_ended = False

    async def _live(self, life: Life, stored: StoredGroup | None, first: Seat | None, seat: Seat) -> Merging:
        """Begin a life with a checkpoint, or else with the weights of the session of a seat, which are the first.

        The sessions of other members in the life before end, because these have to begin again.
        """
        assert self.agreement is not None, "a session has a seat only under an agreement"
        name, agreement = self._config.name, self.agreement if stored is None else stored.agreement
        held = await self._build(agreement, len(self._config.ranks))
        if stored is not None:
            whole = await self._lane.aside(GroupWeights.restored, held, agreement.weights_codec, stored.states)
        else:
            assert first is not None, "the first weights are those of a session"
            whole = await self._first_weights(held, agreement, first, seat)
        await self._store.begin_life(life.number, life.origin)
        self._seats.end_others(seat)
        self._check_seated(seat)  # a session may end meanwhile
        self.record.begin_life(life, agreement.steps)
        step_log = None if self._step_logs is None else StepLog(self._step_logs, name, "group")
        if step_log is not None:
            step_log.rolled_back(life.first_step)
        self.forget()
        self.agreement = agreement
        self.merging = Merging(whole, agreement, self._lane, self._config, life, self.figures, step_log)
        step, steps = life.first_step, agreement.steps
        _log.info("a group begins", group=name, life=life.number, step=step, size=self._config.size, steps=steps)
        return self.merging

    async def _first_weights(self, held: HeldBlocks, agreement: Agreement, first: Seat, seat: Seat) -> GroupWeights:
        """Take the first weights from the session of a seat. seat: of the member that has called.

        Raises ConfigError for weights that are not finite, and SeatLostError for a session that has trained.
        """
        self._check_seated(first)
        session = first.session
        blocks = session.blocks.held.chain.blocks
        weights = await self._threads.compute_lane(session.id).aside(
            lambda: {block: weights_of(blocks[block]) for block in agreement.blocks}
        )
        refusal: IsthmusError | None = None
        if first.has_trained:
            refusal = self._seats.lost(first.rank)
        elif (name := await self._lane.aside(_first_not_finite, weights)) is not None:
            refusal = ConfigError(
                f"group {self._config.name!r} cannot begin with the weights of rank {first.rank}: {name} holds numbers that "
                "are not finite; have this member start from others (training.start_from)"
            )
        if refusal is not None:
            self._seats.end(first)
            raise refusal if first is seat else self.elsewhere(str(refusal))
        for block, tensors in weights.items():
            await self._lane.aside(held.take_weights, block, tensors)
        return GroupWeights(held, agreement.weights_codec)

    async def _members(self) -> dict[int, int]:
        """Return the members that go on, with their first steps. Raises IsthmusError."""
        return await self.record.to_go_on() if self.merging is None else self.merging.staying

    def _check_word(
        self,
        seat: Seat,
        said: GoingBack,
        here: Position,
        origin: CheckpointName | None,
        members: Collection[int],
    ) -> None:
        """Refuse to go back as the member of a seat says while others who go on do not say so. Raises NotNowError."""
        newest = max(here.checkpoints, default=None)
        gives_up = origin != newest if self.merging is None else self.step > said.step
        if gives_up and (lacking := self._witnesses.lacking(seat, said, self.record.unfinished(members))):
            raise self.elsewhere(
                f"rank {seat.rank} says that it goes back to step {said.step}; ranks {lacking} have to say so, too"
            )

    def _check_seated(self, seat: Seat) -> None:
        """Refuse a seat whose rank another session has since. Raises SeatLostError."""
        if not self._seats.holds(seat):
            raise self._seats.lost(seat.rank)

    def _check_ranks(self, ranks: Collection[int]) -> None:
        """Refuse members that the group cannot have. Raises ProtocolError."""
        if any(rank not in self._config.ranks for rank in ranks):
            raise ProtocolError(
                f"group {self._config.name!r} cannot have a member of rank {max(ranks)}; its ranks are 0 to "
                f"{self._config.ranks[-1]}"
            )

    def _check_begun(self, rank: int, agreement: Agreement | None) -> None:
        """Refuse a rank that can only join where there is nothing that it could join. Raises NotNowError."""
        if agreement is None and rank >= self._config.size:
            raise NotNowError(
                f"group {self._config.name!r} begins with ranks 0 to {self._config.size - 1}, and has not begun; rank {rank} "
                "can join then",
            )


def _first_not_finite(weights: dict[int, BlockTensors]) -> str | None:
    """Name the first of some weights that are not all finite numbers, and its block; None if there are none."""
    for block, tensors in weights.items():
        for name, is_finite in zip(tensors, are_finite(list(tensors.values())), strict=True):
            if not is_finite:
                return f"{name.partition('/')[2]} of block {block}"
    return None
