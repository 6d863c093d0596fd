"""The sessions that a trainer holds, by id: their number, their owners, and the time for which it keeps unused ones.

A session belongs to the subject of the call that opened it. Every other caller is refused as if the session did not
exist. An edge that dies before it attaches, or between its last step and its farewell, says nothing; a timeout frees its place.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from cloud_trainer.sessions.session import Session
from shared.telemetry.logs import bind_run
from shared.transport.auth.callers import caller
from shared.transport.rpc.status import StatusError
from shared.version import NO_SESSION

_RETRY_SECONDS = 30.0
"""Retry time for a place. Sessions last minutes to days, and an agent that asks twice a minute costs nothing."""


@dataclass(slots=True)
class _Place:
    owner: str
    """Subject that the session belongs to."""
    session: Session | None = None
    """The session; None while its model is being built."""
    calls: int = 0
    """Number of calls that use the session now."""
    expiry: asyncio.TimerHandle | None = None
    """Timer that runs while no call uses the session."""


class SessionRegistry:
    """Open sessions. A place is reserved before a model is built, so that building cannot exceed the limit.

    Used on the event loop, except for the members that metrics read: `len`, `limit` and `built`.
    """

    def __init__(
        self,
        limit: int,
        idle_seconds: float,
        unattached_seconds: float,
        end_session: Callable[[Session], None],
        limit_per_subject: int | None = None,
    ) -> None:
        """idle_seconds: time for which an unused session is kept. unattached_seconds: the same for one that was never attached.

        end_session: called with each session that is freed for that reason.
        """
        self.limit = limit
        self._limit_per_subject = limit_per_subject
        self._idle_seconds = idle_seconds
        self._unattached_seconds = unattached_seconds
        self._end_session = end_session
        self._places: dict[str, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._places

    @property
    def built(self) -> list[Session]:
        """List the sessions whose models are built."""
        return [place.session for place in list(self._places.values()) if place.session is not None]

    @property
    def owned(self) -> list[tuple[str, str, Session | None]]:
        """List the id, owner and session of every place. The session is None while its model is being built."""
        return [(session_id, place.owner, place.session) for session_id, place in self._places.items()]

    def owner(self, session_id: str) -> str | None:
        """Return the subject that an open session belongs to; None if there is none."""
        place = self._places.get(session_id)
        return None if place is None else place.owner

    @property
    def free_for_caller(self) -> int:
        """Return the number of sessions that the caller may open now."""
        free = self.limit - len(self._places)
        if self._limit_per_subject is not None:
            own = sum(place.owner == caller().subject for place in self._places.values())
            free = min(free, self._limit_per_subject - own)
        return max(free, 0)

    def reserve(self, session_id: str | None = None) -> str:
        """Reserve a place for a session of the caller: a new one with a new id, or one that comes back.

        When all are taken, a session whose edge was lost gives up its place. Raises StatusError if there is none.
        """
        if len(self._places) >= self.limit:
            self._give_up_lost()
        if len(self._places) >= self.limit:
            raise _no_place(f"{self.limit} sessions are open, which is this trainer's limit (server.max_sessions)")
        owner = caller().subject
        own = sum(place.owner == owner for place in self._places.values())
        if self._limit_per_subject is not None and own >= self._limit_per_subject:
            raise _no_place(
                f"{own} sessions of {owner or 'this caller'!r} are open, which is the limit of one subject "
                "(server.max_sessions_per_subject)"
            )
        session_id = session_id or secrets.token_hex(16)
        self._places[session_id] = _Place(owner)
        return session_id

    def add(self, session: Session) -> None:
        """Put a built session in its reserved place."""
        place = self._places[session.id]
        place.session = session
        self._expire_later(session.id, place)

    def find(self, session_id: str) -> Session | None:
        """Return the session of that id, if it is in memory."""
        place = self._places.get(session_id)
        return None if place is None else place.session

    @contextmanager
    def using(self, session_id: str) -> Iterator[Session]:
        """Use the caller's session of that id. It does not expire meanwhile, and the task's log names it from now on.

        Raises StatusError if there is none.
        """
        self.check_owner(session_id)
        place = self._places.get(session_id)
        if place is None or place.session is None:
            raise self.not_found(session_id)
        if place.expiry is not None:
            place.expiry.cancel()
        place.calls += 1
        bind_run(place.session.run_id, session_id)
        try:
            yield place.session
        finally:
            place.calls -= 1
            if place.calls == 0 and self._places.get(session_id) is place:
                self._expire_later(session_id, place)

    def check_owner(self, session_id: str) -> None:
        """Refuse the id of another subject's session as if there were none. Raises StatusError."""
        place = self._places.get(session_id)
        if place is not None and place.owner != caller().subject:
            raise self.not_found(session_id)

    def remove(self, session: Session) -> None:
        """Free the place of this session. If another session has its id by now, nothing happens."""
        place = self._places.get(session.id)
        if place is not None and place.session is session:
            del self._places[session.id]
            if place.expiry is not None:
                place.expiry.cancel()

    def release(self, session_id: str) -> None:
        """Free a reserved place. If a session has taken it, nothing happens."""
        place = self._places.get(session_id)
        if place is not None and place.session is None:
            del self._places[session_id]

    def close(self) -> None:
        """Stop the expiry of all sessions."""
        for place in self._places.values():
            if place.expiry is not None:
                place.expiry.cancel()

    def not_found(self, session_id: str) -> StatusError:
        """Build the refusal for a session that does not exist, or belongs to another caller."""
        return StatusError(
            grpc.StatusCode.NOT_FOUND,
            f"there is no session {session_id[:40]!r}; it was closed, left unused for {self._idle_seconds:g} s "
            f"(server.session_idle_seconds) or, before it was attached, for {self._unattached_seconds:g} s "
            "(server.unattached_seconds), or never opened",
            wanted=session_id == NO_SESSION,
        )

    def _give_up_lost(self) -> None:
        """Free the place of the session that lost its edge first, if any did."""
        lost = [
            (place.session.attachment.lost_at, session_id, place)
            for session_id, place in self._places.items()
            if place.session is not None and place.session.attachment.lost_at is not None and place.calls == 0
        ]
        if lost:
            _, session_id, place = min(lost, key=lambda each: each[0])
            self._expire(session_id, place)

    def _expire_later(self, session_id: str, place: _Place) -> None:
        assert place.session is not None, "a session that is being built does not expire"
        if place.expiry is not None:
            place.expiry.cancel()
        seconds = self._idle_seconds if place.session.attachment.begun else self._unattached_seconds
        place.expiry = asyncio.get_running_loop().call_later(seconds, self._expire, session_id, place)

    def _expire(self, session_id: str, place: _Place) -> None:
        if self._places.get(session_id) is not place or place.session is None:
            return  # The place was freed, and another session has the id now.
        self.remove(place.session)
        self._end_session(place.session)


def _no_place(sentence: str) -> StatusError:
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence, _RETRY_SECONDS)
