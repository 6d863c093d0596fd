"""The sessions of a group's members, by rank."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context

import grpc

from cloud_trainer.groups.member_seat import MemberSeat
from cloud_trainer.sessions.session import Session
from shared.transport.rpc.status import StatusError

EndSession = Callable[[Session], Coroutine[None, None, None]]
"""Ends a session whose member has come back in another one, or has to."""
_TAKEN_SECONDS = 2.0
"""Time after which to ask again for a rank that is taken. A link that is lost without a word is known to be in some seconds."""


class Seats:
    """The seats of one group that have a session. Used on the event loop."""

    def __init__(self, group: str, end_session: EndSession) -> None:
        self._group = group
        self._end_session = end_session
        self._seats: dict[int, MemberSeat] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> dict[int, Session]:
        """Return the sessions by rank."""
        return {rank: seat.session for rank, seat in list(self._seats.items()) if seat.session is not None}

    @property
    def attached(self) -> list[int]:
        """List the ranks whose members are linked now."""
        return sorted(rank for rank, session in self.sessions.items() if session.attachment.attached)

    def check_free(self, rank: int) -> None:
        """Refuse a rank whose member has begun and is linked now, which may pass. Raises StatusError.

        It may be the caller's own session of before, whose link this trainer does not know to be lost.
        """
        if rank in self.attached and self.begun(rank) is not None:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"rank {rank} of group {self._group!r} is taken by a member that is linked now; give each device a rank of "
                "its own",
                _TAKEN_SECONDS,
            )

    def put(self, seat: MemberSeat, session: Session) -> None:
        """Give a seat to a session. One that had the rank ends."""
        before = self._seats.get(seat.rank)
        seat.session, self._seats[seat.rank] = session, seat
        if before is not None:
            self._end_session_of(before)

    def session_of(self, seat: MemberSeat) -> Session | None:
        """Return the session of a seat; None if another session has its rank since."""
        return seat.session if self._seats.get(seat.rank) is seat else None

    def seated(self, seat: MemberSeat) -> Session:
        """Return the session of a seat. Raises StatusError if another session has its rank since."""
        if (session := self.session_of(seat)) is None:
            raise self.another(seat)
        return session

    def another(self, seat: MemberSeat) -> StatusError:
        """Build the refusal for a session whose member has to go on in another one."""
        return StatusError(
            grpc.StatusCode.NOT_FOUND, f"rank {seat.rank} of group {self._group!r} is another session's now"
        )

    def newcomer(self, rank: int) -> MemberSeat | None:
        """Return the seat of a rank that has not begun; None if there is none."""
        seat = self._seats.get(rank)
        return None if seat is None or seat.is_taken else seat

    def begun(self, rank: int) -> Session | None:
        """Return the session of a rank that has begun; None if there is none."""
        seat = self._seats.get(rank)
        return seat.session if seat is not None and seat.is_taken else None

    def remove(self, seat: MemberSeat) -> None:
        """Forget a seat whose session has ended."""
        del self._seats[seat.rank]

    def clear(self) -> list[Session]:
        """Forget all seats; returns the sessions that had them."""
        sessions = list(self.sessions.values())
        self._seats.clear()
        return sessions

    @property
    def begun_seconds(self) -> dict[int, float]:
        """By rank whose session has begun, the time at which it has."""
        return {rank: seat.begun_seconds for rank, seat in self._seats.items() if seat.is_taken}

    def end_session_of(self, rank: int) -> None:
        """End the session of a rank, if there is one."""
        if (seat := self._seats.get(rank)) is not None:
            self.end(seat)

    def end(self, seat: MemberSeat) -> None:
        """End the session of a seat, so that its member begins again in another one."""
        self.remove(seat)
        self._end_session_of(seat)

    def end_others(self, seat: MemberSeat | None) -> None:
        """End the sessions that have begun, except for that of a seat."""
        for other in [other for other in self._seats.values() if other is not seat and other.is_taken]:
            self.end(other)

    async def close(self) -> None:
        """Wait until the sessions that are to end have ended."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end_session_of(self, seat: MemberSeat) -> None:
        assert seat.session is not None, "what has a rank has a session"
        self._ending.add(task := asyncio.create_task(self._end_session(seat.session), context=Context()))
        task.add_done_callback(self._ending.discard)
