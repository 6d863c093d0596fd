"""The word of a group's members, without which no trainer gives up steps that are done.

Where a group goes on follows from what its members carry between trainers, and a trainer has nothing but their word for it: it
need not be able to dial another one, and would have to take the address from the same member. So it goes back only where all
who go on say the same: a member that is linked, because all is well with it, is a witness against.
"""

import time
from collections.abc import Collection
from typing import NamedTuple

import structlog

from cloud_trainer.groups.seats import Seat, Seats

_log = structlog.get_logger(__name__)


class GoingBack(NamedTuple):
    """The place to which a group goes back, as its members say it, because a life is lost somewhere."""

    life: int
    """The number of the life that goes on; 0 where this trainer is to begin it."""
    step: int
    """The step at which it begins."""


class Witnesses:
    """The words of one group's members, as long as their sessions are there. Used on the event loop."""

    def __init__(self, group: str, seats: Seats, leave_out_seconds: float | None) -> None:
        """leave_out_seconds: time after which nobody waits for the word of a member that is away; None bounds none."""
        self._group = group
        self._seats = seats
        self._leave_out_seconds = leave_out_seconds
        self._said: dict[int, tuple[Seat, GoingBack]] = {}
        self._since: dict[GoingBack, float] = {}
        """Time of the first word, by what was said."""

    def lacking(self, seat: Seat, said: GoingBack, members: Collection[int]) -> list[int]:
        """Note what the member of a seat says; list the members whose word for the same is not there yet."""
        now, is_new = time.monotonic(), said not in self._since
        self._said[seat.rank] = seat, said
        seconds, attached = now - self._since.setdefault(said, now), self._seats.attached
        may_miss = self._leave_out_seconds is not None and seconds >= self._leave_out_seconds
        lacking = [rank for rank in members if not (self._says(rank, said) or (may_miss and rank not in attached))]
        if lacking and is_new:
            told = {"group": self._group, "rank": seat.rank, "step": said.step, "waits_for": lacking}
            _log.warning("a member says that its group has to go back; all others have to say so, too", **told)
        return lacking

    def forget(self) -> None:
        """Forget all that was said: the group is in another life."""
        self._said.clear()
        self._since.clear()

    def _says(self, rank: int, said: GoingBack) -> bool:
        seat, theirs = self._said.get(rank, (None, None))
        return seat is not None and theirs == said and self._seats.holds(seat)
