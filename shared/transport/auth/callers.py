"""Who calls: by bearer token, by client certificate, or nobody in particular where neither is asked for."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from shared.errors import ConfigError
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.tokens import AN_AGENTS, Scope, TokenBook
from shared.transport.rpc.status import StatusError

Context = grpc.aio.ServicerContext[Any, Any]
_SCHEME = "bearer "
_HOW = "the edge sends the one in trainer.token_file or EDGE_AGENT_TRAINER__TOKEN"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a call comes from, and what it may do. What a caller makes belongs to its subject."""

    subject: str
    scopes: frozenset[Scope] = frozenset(Scope)


ANYONE = Caller("")
"""The caller on a port that asks nobody who they are."""

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


def caller() -> Caller:
    """Who the call of this task comes from."""
    return _caller.get()


def set_caller(who: Caller) -> None:
    """Set the caller for the rest of this task; whatever lets a call in calls this once."""
    _caller.set(who)


class Authenticator:
    """Finds the caller of a call.

    tokens: the book; None where no token is asked for. certificates: whether every client has shown one that we trust;
    its common name is the subject where no token is asked for.
    """

    def __init__(self, tokens: Reloaded[TokenBook] | None, *, certificates: bool) -> None:
        self._tokens = tokens
        self._certificates = certificates

    @property
    def failure(self) -> ConfigError | None:
        """Why nobody can be told from a stranger now: the book cannot be read, and what it said before is in doubt."""
        if self._tokens is None:
            return None
        self._tokens.get()
        return self._tokens.failure

    def judge(self) -> Callable[[Caller, Scope], bool]:
        """What says whether a caller who was let in may still do what a scope allows; during a `failure` every one may."""
        if self._tokens is None or self.failure is not None:
            return lambda _who, _scope: True
        book = self._tokens.get()
        return lambda who, scope: book.allows(who.subject, scope)

    @property
    def asks(self) -> bool:
        """Whether a stranger is told from a friend."""
        return self._tokens is not None or self._certificates

    def identify(self, context: Context) -> Caller:
        """The caller. Raises StatusError (UNAUTHENTICATED)."""
        if self._tokens is not None:
            return self._by_token(self._tokens.get(), context)
        return self._by_certificate(context) if self._certificates else ANYONE

    def _by_token(self, book: TokenBook, context: Context) -> Caller:
        metadata = context.invocation_metadata() or ()
        values = [value for key, value in metadata if key == "authorization"]
        if len(values) != 1 or not isinstance(values[0], str) or not values[0].lower().startswith(_SCHEME):
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, f"this trainer asks for a bearer token; {_HOW}")
        entry = book.find(values[0][len(_SCHEME) :].strip())
        if entry is None:
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, f"the token is none of this trainer's; {_HOW}")
        return Caller(entry.subject, frozenset(entry.scopes))

    def _by_certificate(self, context: Context) -> Caller:
        names = context.auth_context().get("x509_common_name", ())
        if not (subject := next(iter(names), b"").decode(errors="replace")):
            raise StatusError(
                grpc.StatusCode.UNAUTHENTICATED, "the client's certificate has no common name to know it by"
            )
        return Caller(subject, frozenset(AN_AGENTS))
