"""The next life of a group: with which weights it goes on, by what its members carry between trainers and say alike.

A trainer has nothing but its members' word for where the group is elsewhere: it need not be able to dial another one, and would
have to take the address from the same member. So it gives up steps that are done only where all who go on say the same: a
member that is linked, because all is well with it, is a witness against.
"""

import time
from collections.abc import Collection
from typing import NamedTuple

import structlog

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, StoredGroup
from cloud_trainer.groups.group_weights import GroupWeights
from cloud_trainer.groups.lives import Life, Position, check_number, common_checkpoints, next_number
from cloud_trainer.groups.merging import Merging
from cloud_trainer.groups.refusals import NotNowError, elsewhere
from cloud_trainer.groups.seats import Seat, Seats
from cloud_trainer.sessions.shared_thread import ThreadLane
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import CheckpointName
from shared.errors import ConfigError, IsthmusError
from shared.execution.shared_blocks import weights_of
from shared.training.block_state import BlockTensors
from shared.training.finite import are_finite
from shared.training.held_blocks import HeldBlocks

_log = structlog.get_logger(__name__)


class GoingBack(NamedTuple):
    """The place to which a group goes back, as its members say it, because a life is lost somewhere."""

    life: int
    """The number of the life that goes on; 0 where this trainer is to begin it."""
    step: int
    """The step at which it begins."""


class NextLife(NamedTuple):
    """A life that is to begin at this trainer."""

    life: Life
    stored: StoredGroup | None
    """The checkpoint with which it begins; None for one that begins with first weights."""
    first: Seat
    """Seat of the session that has the first weights, where no checkpoint has them."""


class NextLives:
    """The judge of where one group goes on. Used on the event loop, one call at a time."""

    def __init__(self, config: GroupConfig, store: GroupStore, seats: Seats, threads: TrainerThreads) -> None:
        self._config = config
        self._store = store
        self._seats = seats
        self._threads = threads
        self._said: dict[int, tuple[Seat, GoingBack]] = {}
        """The last word of each member, by rank. It counts as long as its session is there."""
        self._since: dict[GoingBack, float] = {}
        """Time of the first word, by what was said."""

    async def position(self, merging: Merging | None) -> Position:
        """Tell where the group is here. merging: its present life, if it is in one. Raises StorageError."""
        names = tuple(await self._store.names())
        return Position(0, 0, names) if merging is None else Position(merging.life.number, merging.step, names)

    async def decided(self, merging: Merging | None, others: Collection[Position], seat: Seat) -> NextLife | None:
        """Decide which life follows, by the positions at the other trainers; None where all go on in the present one.

        Another one follows where any trainer has lost its state. Raises NotNowError while other members have not said so, if
        steps would be given up.
        """
        if merging is not None and not any(other.has_lost(merging.life, merging.step) for other in others):
            return None
        here = await self.position(merging)
        members = await self._members(merging)
        number, steps = next_number(here, others), self._config.checkpoint_steps
        for name in common_checkpoints(here, others):
            if (stored := await self._store.load(name)) is not None:
                self._check_word(seat, GoingBack(0, name.step), here, name, members)
                return NextLife(Life(number, name, seat.rank, steps, members), stored, seat)
        self._check_word(seat, GoingBack(0, 0), here, None, members)  # the word of one who can only join counts, too
        self.check_can_begin(seat.rank)
        return NextLife(Life(number, None, seat.rank, steps, members), None, seat)

    async def followed(self, merging: Merging | None, life: Life, seat: Seat) -> NextLife | None:
        """Follow another trainer into a life; None where this is the present one.

        Raises NotNowError where the group cannot be in that here, and as `decided` does.
        """
        name, here_number = self._config.name, 0 if merging is None else merging.life.number
        if merging is not None and here_number == life.number:
            return None
        if life.number < here_number:
            raise elsewhere(name, f"life {life.number} has ended")
        check_number(life.number, here := await self.position(merging))
        life.check_ranks(name, self._config.ranks)
        first, stored = seat, None
        if life.origin is not None:
            if (stored := await self._store.load(life.origin)) is None:
                raise elsewhere(name, f"checkpoint {life.origin} is not here")
        elif (found := self._seats.at(life.first_rank)) is None or found.began_seconds is not None:
            raise elsewhere(name, f"it begins with the weights of rank {life.first_rank}, which is not here")
        else:
            first = found
        said = GoingBack(life.number, life.first_step)
        self._check_word(seat, said, here, life.origin, await self._members(merging))
        return NextLife(life, stored, first)

    def check_can_begin(self, rank: int) -> None:
        """Refuse a rank that can only join, because there is nothing that it could join. Raises NotNowError."""
        if rank >= self._config.size:
            raise NotNowError(
                f"group {self._config.name!r} begins with ranks 0 to {self._config.size - 1}, and has not begun; rank {rank} "
                "can join then"
            )

    def lacking(self, seat: Seat, said: GoingBack, members: Collection[int]) -> list[int]:
        """Note what the member of a seat says; list the members whose word for the same is not there yet.

        In a group that leaves out late members, nobody waits for long for the word of one that is away.
        """
        now, is_new = time.monotonic(), said not in self._since
        self._said[seat.rank] = seat, said
        seconds, attached = now - self._since.setdefault(said, now), self._seats.attached
        may_miss = self._config.leave_out_seconds is not None and seconds >= self._config.leave_out_seconds
        lacking = [rank for rank in members if not (self._says(rank, said) or (may_miss and rank not in attached))]
        if lacking and is_new:
            told = {"group": self._config.name, "rank": seat.rank, "step": said.step, "waits_for": lacking}
            _log.warning("a member says that its group has to go back; all others have to say so, too", **told)
        return lacking

    async def weights(
        self, following: NextLife, agreement: Agreement, held: HeldBlocks, seat: Seat, lane: ThreadLane
    ) -> GroupWeights:
        """Return the weights with which a life begins, in the blocks `held`. seat: of the member that has called.

        Without a checkpoint they are those of a session. Raises ConfigError where these are not finite, and SeatLostError for a
        session that has trained.
        """
        if following.stored is not None:
            held.rate_drops = following.stored.rate_drops
            return await lane.aside(GroupWeights.restored, held, agreement.weights_codec, following.stored.states)
        first, name = following.first, self._config.name
        if not self._seats.holds(first):
            raise self._seats.lost(first.rank)
        blocks = first.session.blocks.held.chain.blocks
        weights = await self._threads.compute_lane(first.session.id).aside(
            lambda: {block: weights_of(blocks[block]) for block in agreement.blocks}
        )
        refusal: IsthmusError | None = None
        if first.has_trained:
            refusal = self._seats.lost(first.rank)
        elif (which := await lane.aside(_first_not_finite, weights)) is not None:
            refusal = ConfigError(
                f"group {name!r} cannot begin with the weights of rank {first.rank}: {which} holds numbers that are not "
                "finite; have this member start from others (training.start_from)"
            )
        if refusal is not None:
            self._seats.end(first)
            raise refusal if first is seat else elsewhere(name, str(refusal))
        for block, tensors in weights.items():
            await lane.aside(held.take_weights, block, tensors)
        return GroupWeights(held, agreement.weights_codec)

    def forget_words(self) -> None:
        """Forget all that was said: the group is in another life."""
        self._said.clear()
        self._since.clear()

    async def _members(self, merging: Merging | None) -> dict[int, int]:
        """Return the members that go on, with their first steps. Raises IsthmusError."""
        return await self._store.to_go_on() if merging is None else merging.staying

    def _check_word(
        self, seat: Seat, said: GoingBack, here: Position, origin: CheckpointName | None, members: Collection[int]
    ) -> None:
        """Refuse to go back as the member of a seat says while others who go on do not say so. Raises NotNowError."""
        newest = max(here.checkpoints, default=None)
        gives_up = here.step > said.step if here.life else origin != newest
        if gives_up and (lacking := self.lacking(seat, said, self._store.unfinished(members))):
            raise elsewhere(
                self._config.name,
                f"rank {seat.rank} says that it goes back to step {said.step}; ranks {lacking} have to say so, too",
            )

    def _says(self, rank: int, said: GoingBack) -> bool:
        seat, theirs = self._said.get(rank, (None, None))
        return seat is not None and theirs == said and self._seats.holds(seat)


def _first_not_finite(weights: dict[int, BlockTensors]) -> str | None:
    """Name the first of some weights that are not all finite numbers, and its block; None if there are none."""
    for block, tensors in weights.items():
        for name, is_finite in zip(tensors, are_finite(list(tensors.values())), strict=True):
            if not is_finite:
                return f"{name.partition('/')[2]} of block {block}"
    return None
