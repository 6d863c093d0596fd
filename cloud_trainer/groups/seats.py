"""The seats of a group: each is the place of one member's session, and a rank has one at most."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass

from cloud_trainer.groups.refusals import NotNowError, SeatLostError
from cloud_trainer.sessions.session import Session

EndSession = Callable[[Session], Coroutine[None, None, None]]
"""Ends a session whose member has come back in another one, or has to."""
_TAKEN_SECONDS = 2.0
"""Time after which to ask again for a rank that is taken. A link that is lost without a word is known to be in some seconds."""


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one member's session."""

    rank: int
    subject: str
    """Subject of the caller that has opened the session."""
    session: Session
    decides: bool
    """True if this trainer decides where the group goes on, because it owns the first block that training changes."""
    other_trainers: int
    """Number of the other trainers that have a part of the group."""
    is_lossy: bool
    """True if the member's codec takes anything from the gradients that it sends here."""
    began_seconds: float | None = None
    """Time at which the session has begun in the group, by time.monotonic; None before."""
    has_trained: bool = False
    """True once the session has had weights of the group, so that it has no first ones any more."""
    may_join: bool = False
    """True once the group has said that the member has to join, until it begins."""


class Seats:
    """The seats of one group. Used on the event loop; `attached` and `sessions` are read on any thread."""

    def __init__(self, group: str, end_session: EndSession) -> None:
        self._group = group
        self._end_session = end_session
        self._seats: dict[int, Seat] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> dict[int, Session]:
        """Return the sessions by rank."""
        return {rank: seat.session for rank, seat in list(self._seats.items())}

    @property
    def attached(self) -> list[int]:
        """List the ranks whose members are linked now."""
        return sorted(rank for rank, session in self.sessions.items() if session.attachment.attached)

    @property
    def began_seconds(self) -> dict[int, float]:
        """By rank whose session has begun, the time at which it has."""
        return {rank: seat.began_seconds for rank, seat in self._seats.items() if seat.began_seconds is not None}

    def at(self, rank: int) -> Seat | None:
        """Return the seat of a rank; None if no session has it."""
        return self._seats.get(rank)

    def holds(self, seat: Seat) -> bool:
        """Tell whether a seat still has its rank."""
        return self._seats.get(seat.rank) is seat

    def find(self, session: Session) -> Seat | None:
        """Return the seat of a session; None if another one has its rank since."""
        return next((seat for seat in self._seats.values() if seat.session is session), None)

    def seat_of(self, session: Session) -> Seat:
        """Return the seat of a session. Raises SeatLostError if another one has its rank since."""
        if (seat := self.find(session)) is None:
            raise self.lost(session.request.group.rank)
        return seat

    def lost(self, rank: int) -> SeatLostError:
        """Build the refusal for a session whose member has to go on in another one."""
        return SeatLostError(f"rank {rank} of group {self._group!r} is another session's now")

    def check_free(self, rank: int, subject: str) -> None:
        """Refuse a rank whose member has begun and is linked now, which may pass. Raises NotNowError.

        It may be the caller's own session of before, whose link this trainer does not know to be lost.
        """
        seat = self._seats.get(rank)
        if seat is not None and seat.began_seconds is not None and seat.session.attachment.attached:
            elsewhere = seat.session.attachment.elsewhere() if seat.subject == subject else ""
            raise NotNowError(
                f"rank {rank} of group {self._group!r} is taken by a member that is linked now{elsewhere}; give each device a "
                "rank of its own",
                _TAKEN_SECONDS,
            )

    def occupy(self, seat: Seat) -> None:
        """Give a seat its rank. A session that had the rank ends."""
        before, self._seats[seat.rank] = self._seats.get(seat.rank), seat
        if before is not None:
            self._begin_to_end(before.session)

    def vacate(self, seat: Seat) -> None:
        """Forget a seat whose session has ended."""
        del self._seats[seat.rank]

    def clear(self) -> list[Session]:
        """Forget all seats; returns the sessions that had them."""
        sessions = list(self.sessions.values())
        self._seats.clear()
        return sessions

    def end(self, seat: Seat) -> None:
        """End the session of a seat, so that its member begins again in another one."""
        self.vacate(seat)
        self._begin_to_end(seat.session)

    def end_others(self, seat: Seat | None) -> None:
        """End the sessions that have begun, except for that of a seat."""
        for other in list(self._seats.values()):
            if other is not seat and other.began_seconds is not None:
                self.end(other)

    async def close(self) -> None:
        """Wait until the sessions that are to end have ended."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _begin_to_end(self, session: Session) -> None:
        self._ending.add(task := asyncio.create_task(self._end_session(session), context=Context()))
        task.add_done_callback(self._ending.discard)
