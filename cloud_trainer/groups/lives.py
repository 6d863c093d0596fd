"""A group's lives: its steps from one return to a checkpoint to the next, at all its trainers together.

The trainer that owns the first block which training changes decides when a life begins, and with which checkpoint. Members
tell it where the group is at the others, and tell the others what it has decided.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from shared.bounds import MOST_TERMS, MOST_WORKERS, is_step, is_term
from shared.checkpoint import MAX_NAMED, CheckpointName
from shared.checkpoint_wire import checkpoint_message, checkpoint_name
from shared.errors import ProtocolError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

MOST_AHEAD = 2**20
"""Lives by which a group may be ahead elsewhere: so no claim of a member uses up all numbers."""


class Life(NamedTuple):
    """One life of a group."""

    number: int
    """1 or more, and higher than that of any life before."""
    origin: CheckpointName | None
    """Checkpoint with which it has begun; None if it began at step 0 with first weights."""
    first_rank: int
    """Rank of the member whose first weights these were."""
    checkpoint_steps: int
    """Steps between checkpoints, at all trainers."""
    members: Mapping[int, int]
    """By rank, the first step in which it takes part, in this life or before."""

    @property
    def first_step(self) -> int:
        """Return the step at which it has begun."""
        return 0 if self.origin is None else self.origin.step

    @property
    def message(self) -> pb.GroupLife:
        """Return it as members carry it."""
        origin = None if self.origin is None else checkpoint_message(self.origin)
        return pb.GroupLife(
            number=self.number,
            origin=origin,
            first_rank=self.first_rank,
            checkpoint_steps=self.checkpoint_steps,
            ranks=[rank for rank, first in self.members.items() if not first],
            joiners=[pb.GroupJoiner(rank=rank, first_step=first) for rank, first in self.members.items() if first],
        )

    @classmethod
    def read(cls, said: pb.GroupLife, most: int) -> Self:
        """Read what a member carries. most: ranks that there can be. Raises ProtocolError for a life that cannot be."""
        if (count := len(said.ranks) + len(said.joiners)) > most:
            raise ProtocolError(f"a group is said to have {count} members; {most} is the most")
        if (
            not said.number
            or not is_term(said.number)
            or not said.checkpoint_steps
            or not is_step(said.checkpoint_steps)
        ):
            raise ProtocolError(
                f"no group can be in life {said.number} with a checkpoint every {said.checkpoint_steps} steps"
            )
        if any(not is_step(joiner.first_step) for joiner in said.joiners):
            raise ProtocolError(f"nobody joins a group in life {said.number} at a step that a run cannot have")
        origin = checkpoint_name(said.origin) if said.HasField("origin") else None
        members = dict.fromkeys(said.ranks, 0) | {joiner.rank: joiner.first_step for joiner in said.joiners}
        return cls(said.number, origin, said.first_rank, said.checkpoint_steps, members)

    def check_ranks(self, group: str, ranks: range) -> None:
        """Refuse members that a group cannot have. ranks: those that there can be. Raises ProtocolError."""
        if any(rank not in ranks for rank in self.members):
            raise ProtocolError(
                f"group {group!r} cannot have a member of rank {max(self.members)}; its ranks are 0 to {ranks[-1]}"
            )


class Position(NamedTuple):
    """The state of a group at one trainer."""

    life: int
    """Number of its life; 0 if it has not begun since the trainer has."""
    step: int
    """Oldest step that is not done."""
    checkpoints: tuple[CheckpointName, ...]
    """Checkpoints on the trainer's disk; their lineage is the life in which they were taken."""

    def step_in(self, life: Life) -> int:
        """Return the step at which this trainer goes on in a life."""
        return self.step if self.life == life.number else life.first_step

    def has_lost(self, life: Life, step: int) -> bool:
        """Tell whether this trainer cannot go on in a life that has come to this step elsewhere."""
        is_there = life.origin is None or life.origin in self.checkpoints
        return self.life != life.number and (step > life.first_step or not is_there)

    @property
    def newest_life(self) -> int:
        """Return the newest life that it knows of."""
        return max((self.life, *(name.lineage for name in self.checkpoints)))

    @property
    def message(self) -> pb.GroupPosition:
        """Return it as members carry it."""
        return pb.GroupPosition(
            life=self.life, step=self.step, checkpoints=list(map(checkpoint_message, self.checkpoints[:MAX_NAMED]))
        )

    @classmethod
    def read(cls, said: pb.GroupPosition) -> Self:
        """Read what a member carries. Raises ProtocolError for a position that cannot be."""
        if not is_term(said.life) or not is_step(said.step) or len(said.checkpoints) > MAX_NAMED:
            raise ProtocolError(
                f"no group can be at step {said.step} of life {said.life} with {len(said.checkpoints)} checkpoints"
            )
        return cls(said.life, said.step, tuple(map(checkpoint_name, said.checkpoints)))


def read_positions(said: Iterable[pb.GroupPosition]) -> list[Position]:
    """Read the positions of a group at other trainers. Raises ProtocolError for more than there can be, or impossible ones."""
    said = list(said)
    if len(said) > MOST_WORKERS:
        raise ProtocolError(f"a group is said to be at {len(said)} other trainers; {MOST_WORKERS} is the most")
    return [Position.read(one) for one in said]


def next_number(here: Position, others: Iterable[Position]) -> int:
    """Return the number of the life that follows all that any trainer knows of. Raises ProtocolError if there can be none."""
    known = max(other.newest_life for other in (here, *others))
    check_number(known, here)
    if known >= MOST_TERMS:
        raise ProtocolError(f"a group is in life {known}, which is the last that there can be")
    return known + 1


def check_number(number: int, here: Position) -> None:
    """Refuse a claimed life that is too far ahead. Raises ProtocolError."""
    if number > here.newest_life + MOST_AHEAD:
        raise ProtocolError(
            f"a group is said to be in life {number}; this trainer knows of {here.newest_life}, and {MOST_AHEAD} more at most"
        )


def common_checkpoints(here: Position, others: Iterable[Position]) -> list[CheckpointName]:
    """List the checkpoints that all trainers have, the newest first."""
    common = set(here.checkpoints).intersection(*(position.checkpoints for position in others))
    return sorted(common, reverse=True)
