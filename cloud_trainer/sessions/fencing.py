"""The fence of a session: one agent at a time has it, the one with the highest term.

A term is stored before any work is done under it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import structlog

from cloud_trainer.sessions.opened_model import run_of
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.stored_sessions import SessionOpening
from shared.errors import StorageError
from shared.telemetry.logs import bind_run
from shared.transport.auth.callers import caller
from shared.transport.rpc.status import Kind, StatusError
from shared.version import NO_VERSION, PROTOCOL_VERSION, version_refusal

_log = structlog.get_logger(__name__)
_STORAGE_RETRY_SECONDS = 30.0
"""Retry time when a disk is full. An operator has to make room."""


class Fencing:
    """The fences of one trainer's sessions. Used on the event loop."""

    def __init__(self, sessions: SessionRegistry, store: SessionStore) -> None:
        self._sessions = sessions
        self._store = store
        self._attaching: set[str] = set()
        self._ending: Counter[str] = Counter()

    def __contains__(self, session_id: str) -> bool:
        """Tell whether a call is attaching this session, or building it again."""
        return session_id in self._attaching

    @contextmanager
    def alone(self, session_id: str) -> Iterator[None]:
        """Keep every other call from attaching the session, or building it again, meanwhile.

        Raises StatusError if one does, and while the session is being ended.
        """
        for others, doing in ((self._attaching, "attached"), (self._ending, "ended")):
            if session_id in others:
                raise StatusError(
                    grpc.StatusCode.UNAVAILABLE, f"session {session_id} is being {doing} just now; try again"
                )
        self._attaching.add(session_id)
        try:
            yield
        finally:
            self._attaching.discard(session_id)

    @contextmanager
    def ending(self, session_id: str) -> Iterator[None]:
        """Keep every call from building the session again out of files that are about to be removed or let go."""
        self._ending[session_id] += 1
        try:
            yield
        finally:
            self._ending[session_id] -= 1
            if not self._ending[session_id]:
                del self._ending[session_id]

    async def find(self, session_id: str, uses: ExitStack) -> tuple[Session | None, SessionOpening]:
        """Find the caller's session, if it is in memory, and its record. uses: the session counts as used until this is closed.

        Raises StatusError if there is none.
        """
        subject = caller().subject
        self._sessions.check_owner(session_id)
        if self._sessions.find(session_id) is not None:
            session = uses.enter_context(self._sessions.using(session_id))
            return session, SessionOpening(session.request, session.attachment.term, subject)
        record = await self._store.record(session_id)
        # A group's member has no state here, so it opens another session.
        if record is None or record.subject != subject or record.request.HasField("group"):
            raise self._sessions.not_found(session_id)
        bind_run(run_of(record.request, session_id), session_id)
        return None, record

    async def examine(
        self, session_id: str, session_term: int, uses: ExitStack
    ) -> tuple[Session | None, SessionOpening]:
        """Find as `find` does, for an agent that attaches it with this term. Changes nothing.

        Raises StatusError for an agent that may not.
        """
        session, record = await self.find(session_id, uses)
        if session_term <= (last := record.session_term):
            elsewhere = "" if session is None else session.attachment.elsewhere()
            before = f"session {session_id} was attached with term {last} before term {session_term} came"
            if session is None or not session.attachment.has_agent:
                raise StatusError(
                    grpc.StatusCode.ABORTED,
                    f"{before}, by an agent that is not linked now{elsewhere}",
                    kind=Kind.OUTDATED_TERM,
                    term=last,
                )
            raise StatusError(grpc.StatusCode.ABORTED, f"{before}: another agent has it{elsewhere}")
        return session, record

    async def take(self, session_id: str, record: SessionOpening, session_term: int) -> None:
        """Store the term before anything is done under it. Raises StatusError."""
        try:
            if await self._store.fence(session_id, record, session_term):
                return
        except StorageError as failure:
            _log.warning("session not attached: its term cannot be kept", session=session_id, reason=str(failure))
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"session {session_id} cannot be attached now: the trainer cannot write what keeps other agents out "
                "of it; is its disk full?",
                _STORAGE_RETRY_SECONDS,
            ) from failure
        raise StatusError(
            grpc.StatusCode.ABORTED,
            f"session {session_id} was attached with term {session_term} or a later one: another agent has it",
        )

    async def check_kept(self, session: Session) -> None:
        """Refuse a session that was closed or given up while it was being attached. Raises StatusError."""
        if self._sessions.find(session.id) is session:
            return
        if session.forgotten:
            await self._store.forget(session.id)  # The fence has written its record again.
            raise self._sessions.not_found(session.id)
        raise StatusError(
            grpc.StatusCode.UNAVAILABLE, f"session {session.id} was given up while it was being attached; try again"
        )


def check_version(version: int) -> None:
    """Refuse a peer that speaks another version of the contract. Raises StatusError."""
    if version != PROTOCOL_VERSION:
        sentence = version_refusal(version, PROTOCOL_VERSION)
        raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, sentence, wanted=version == NO_VERSION)
