"""The sessions that a trainer holds, by id, and how many it takes."""

import secrets

import grpc

from cloud_trainer.session import Session
from shared.transport.status import Refusal


class Sessions:
    """Open sessions. A place is reserved before a model is built, so that building cannot exceed the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, Session | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def reserve(self) -> str:
        """A new id with a place for its session. Raises Refusal when all places are taken."""
        if len(self._open) >= self._limit:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._limit} sessions are open, which is this trainer's limit (server.max_sessions)",
            )
        session_id = secrets.token_hex(8)
        self._open[session_id] = None
        return session_id

    def add(self, session: Session) -> None:
        """Put a built session in its reserved place."""
        self._open[session.id] = session

    def get(self, session_id: str) -> Session:
        """The session of that id. Raises Refusal when there is none."""
        session = self._open.get(session_id)
        if session is None:
            raise Refusal(
                grpc.StatusCode.NOT_FOUND, f"there is no session {session_id[:40]!r}; it was closed or never opened"
            )
        return session

    def remove(self, session_id: str) -> None:
        """Free the place; nothing happens when it is free."""
        self._open.pop(session_id, None)
