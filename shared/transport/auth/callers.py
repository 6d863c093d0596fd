"""Callers of a server, known by bearer token, ticket or client certificate; without any of these, every caller is ANYONE."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from shared.errors import ConfigError
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.scopes import AN_AGENTS, Scope
from shared.transport.auth.tokens import TokenBook
from shared.transport.rpc.status import Kind, StatusError

Context = grpc.aio.ServicerContext[Any, Any]
_TOKEN, _TICKET = "bearer ", "ticket "
_AN_AGENTS = "the edge sends the one in trainer.token_file or EDGE_AGENT_TRAINER__TOKEN"


def no_such_ticket() -> StatusError:
    """Return the refusal of a ticket that gives no access to the method called."""
    return StatusError(
        grpc.StatusCode.UNAUTHENTICATED,
        "the ticket opens no link of this trainer and gives no block: it was used or withdrawn, or is of something else; an "
        "agent that joins the session again gets another one",
        kind=Kind.TICKET,
    )


class PeerLink(NamedTuple):
    """A link on which another trainer may dial this one."""

    session_id: str
    session_term: int
    """Term in which the agent had joined the session when the ticket was issued."""
    worker: str
    """The worker that dials."""
    evaluation: int
    """The number of the evaluation that the link is for; 0 for training."""


class PeerTicket(NamedTuple):
    """A ticket that a caller has shown and that is not used yet."""

    link: PeerLink
    digest: bytes
    """Its hash, by which it is used."""


class BlockOffer(NamedTuple):
    """Blocks that another trainer may download from this one."""

    session_id: str
    worker: str
    """The worker that may have them."""
    blocks: frozenset[int]
    checkpoint: tuple[int, int] | None = None
    """The lineage and step of the checkpoint in which they are given; None as they are in memory."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The source of a call, with its rights. Sessions that a caller opens belong to its subject.

    ticket, offer: with a ticket in the place of a token, the link or the blocks that it is for. Then the subject is
    that of the session's agent.
    """

    subject: str
    scopes: frozenset[Scope] = frozenset(Scope)
    ticket: PeerTicket | None = None
    offer: BlockOffer | None = None


FindTicket = Callable[[str], Caller | None]
"""Function from a ticket to its caller; None for a ticket that gives no access. A look-up does not use the ticket up."""


ANYONE = Caller("")
"""The caller on a port without authentication."""

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)
_host: ContextVar[str] = ContextVar("host", default="")


def caller() -> Caller:
    """Return the caller of this task's call."""
    return _caller.get()


def caller_host() -> str:
    """Return the address that this task's call comes from, without its port; empty where it is not known."""
    return _host.get()


def set_caller(who: Caller, host: str = "") -> None:
    """Set the caller for the rest of this task. The code that admits a call calls this once."""
    _caller.set(who)
    _host.set(host)


class Authenticator:
    """Finds the caller of a call.

    tokens: the book; None where no token is asked for. certificates: whether every client has shown one that we trust;
    its common name is the subject where no token is asked for. tickets: by the full name of each method that takes them.
    remedy: says where a caller's token comes from, as the end of a refusal.
    """

    def __init__(
        self,
        tokens: Reloaded[TokenBook] | None,
        *,
        certificates: bool,
        tickets: Mapping[str, FindTicket] | None = None,
        remedy: str = _AN_AGENTS,
    ) -> None:
        self._remedy = remedy
        self._tokens = tokens
        self._certificates = certificates
        self._tickets = tickets or {}

    @property
    def failure(self) -> ConfigError | None:
        """Reason why callers cannot be identified now: the book cannot be read, and its former content is in doubt."""
        if self._tokens is None:
            return None
        self._tokens.get()
        return self._tokens.failure

    def judge(self) -> Callable[[Caller, Scope], bool]:
        """Return a test of whether an admitted caller may still use a scope; during a `failure` it passes every caller."""
        if self._tokens is None or self.failure is not None:
            return lambda _who, _scope: True
        book = self._tokens.get()
        return lambda who, scope: book.allows(who.subject, scope)

    @property
    def asks(self) -> bool:
        """Tell whether callers have to show a token or a certificate."""
        return self._tokens is not None or self._certificates

    def identify(self, method: str, context: Context) -> Caller:
        """The caller of a method. Raises StatusError (UNAUTHENTICATED)."""
        metadata = context.invocation_metadata() or ()
        values = [value for key, value in metadata if key == "authorization"]
        shown = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        if shown.lower().startswith(_TICKET):
            return self._by_ticket(method, shown[len(_TICKET) :].strip())
        if self._tokens is not None:
            return self._by_token(self._tokens.get(), shown)
        return self._by_certificate(context) if self._certificates else ANYONE

    def _by_ticket(self, method: str, ticket: str) -> Caller:
        if (find := self._tickets.get(method)) is None:
            raise StatusError(
                grpc.StatusCode.UNAUTHENTICATED,
                "a ticket lets a trainer dial a link, or get blocks and measure the way, and make no other call",
            )
        if (who := find(ticket)) is None:
            raise no_such_ticket()
        return who

    def _by_token(self, book: TokenBook, shown: str) -> Caller:
        if not shown.lower().startswith(_TOKEN):
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, f"a bearer token is asked for; {self._remedy}")
        entry = book.find(shown[len(_TOKEN) :].strip())
        if entry is None:
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, f"the token is not known here; {self._remedy}")
        return Caller(entry.subject, frozenset(entry.scopes))

    def _by_certificate(self, context: Context) -> Caller:
        names = context.auth_context().get("x509_common_name", ())
        if not (subject := next(iter(names), b"").decode(errors="replace")):
            raise StatusError(
                grpc.StatusCode.UNAUTHENTICATED, "the client's certificate has no common name to know it by"
            )
        return Caller(subject, frozenset(AN_AGENTS))
