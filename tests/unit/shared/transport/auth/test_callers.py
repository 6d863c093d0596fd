"""The identity of a caller, by certificate, token or ticket, and its permissions."""

import grpc
import pytest

from shared.transport.auth.callers import Authenticator, Caller
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import TokenBook
from shared.transport.rpc.status import StatusError

LINK, OTHER = "/a.Service/Link", "/a.Service/Other"
PEER = Caller("pi-7", frozenset({Scope.TRAIN}))
NOBODY_HAS_A_TOKEN = Reloaded([], TokenBook)


class Context:
    """A call that brings these headers, on a connection with a certificate."""

    def __init__(self, *authorization):
        self._metadata = [("authorization", value) for value in authorization]

    def invocation_metadata(self):
        return self._metadata

    def auth_context(self):
        return {"x509_common_name": [b"pi-7"]}


def authenticator(tokens=None, *, certificates=False):
    return Authenticator(tokens, certificates=certificates, tickets={LINK: {"good": PEER}.get})


def test_a_certificate_alone_makes_nobody_an_operator():
    who = authenticator(certificates=True).identify(OTHER, Context())
    assert (who.subject, who.scopes) == ("pi-7", {Scope.TRAIN, Scope.CONTROL, Scope.READ})


@pytest.mark.parametrize("asking", [{}, {"tokens": NOBODY_HAS_A_TOKEN}, {"certificates": True}])
def test_a_ticket_makes_a_peer_on_the_one_method_that_takes_it_whatever_else_is_asked_for(asking):
    asks = authenticator(**asking)
    assert asks.identify(LINK, Context("Ticket good")) is PEER
    with pytest.raises(
        StatusError,
        match="a ticket lets a trainer dial a link, or get blocks and measure the way, and make no other call",
    ) as other:
        asks.identify(OTHER, Context("Ticket good"))
    with pytest.raises(StatusError, match="the ticket opens no link of this trainer") as unknown:
        asks.identify(LINK, Context("ticket bad"))
    assert other.value.code is unknown.value.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("headers", [(), ("Bearer good",), ("Ticket good", "Ticket good"), ("good",)])
def test_only_a_ticket_is_taken_for_one(headers):
    with pytest.raises(StatusError, match="token"):
        authenticator(NOBODY_HAS_A_TOKEN).identify(LINK, Context(*headers))
