"""What the gate makes of calls that come with a ticket, on a real socket."""

from contextlib import asynccontextmanager

import grpc

from shared.transport.auth.callers import Authenticator, Caller, PeerLink, PeerTicket, caller
from shared.transport.auth.gate import Gate
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.tokens import Scope, TokenBook, TokenEntry, digest_of

Code = grpc.StatusCode
LINK, OTHER = "/a.Service/Link", "/a.Service/Other"
TICKET = PeerTicket(PeerLink("a session", 3, "near", 0), b"its hash")
OWNER = TokenEntry(subject="pi-7", scopes=(Scope.TRAIN,), sha256=digest_of("the owner's").hex())


class Door:
    """A server behind a gate; `tickets` can be used, and `linked` is who has opened links."""

    def __init__(self, calls_per_second):
        self.tickets = {"good": TICKET}
        self.linked = []
        authenticator = Authenticator(
            Reloaded([], lambda: TokenBook([OWNER])), certificates=False, tickets={LINK: self.find}
        )
        scopes = {LINK: Scope.TRAIN, OTHER: Scope.TRAIN}
        self.gate = Gate(authenticator, scopes, calls_per_second, 1, lambda *_: None)

    def find(self, ticket):
        found = self.tickets.get(ticket)
        return None if found is None else Caller("pi-7", frozenset({Scope.TRAIN}), found)

    async def link(self, requests, context):
        assert await anext(aiter(requests)) == b"opening"
        self.linked.append(caller())
        await context.write(b"opened")
        async for _ in requests:
            pass


@asynccontextmanager
async def standing(calls_per_second=1000.0):
    door = Door(calls_per_second)
    server = grpc.aio.server(interceptors=[door.gate])
    handlers = {name: grpc.stream_stream_rpc_method_handler(door.link) for name in ("Link", "Other")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield door, channel
    finally:
        await server.stop(None)


def dialled(channel, authorization, method=LINK):
    return channel.stream_stream(method)(metadata=(("authorization", authorization),))


async def refused(channel, authorization, method=LINK):
    """How a call ends that is refused before a message was read."""
    call = dialled(channel, authorization, method)
    return await call.code(), await call.details()


async def test_a_call_with_a_ticket_says_for_what_it_was_issued():
    async with standing() as (door, channel):
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        assert [who.ticket for who in door.linked] == [TICKET]
        await call.done_writing()
        assert await call.code() is Code.OK


async def test_a_ticket_that_lets_nobody_in_is_unauthenticated_also_where_the_method_takes_none():
    async with standing() as (door, channel):
        assert (await refused(channel, "Ticket bad"))[0] is Code.UNAUTHENTICATED
        code, sentence = await refused(channel, "Ticket good", OTHER)
        assert code is Code.UNAUTHENTICATED
        assert "dial a link" in sentence
        assert not door.linked


async def test_who_shows_wrong_tickets_is_looked_at_no_more_like_any_stranger():
    async with standing(calls_per_second=0.01) as (_, channel):  # one call at once, and the next much later
        codes = [(await refused(channel, "Ticket bad"))[0] for _ in range(2)]
        assert codes == [Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED]
        assert (await refused(channel, "Ticket good"))[0] is Code.RESOURCE_EXHAUSTED


async def test_links_count_among_the_calls_of_the_session_s_owner():
    async with standing() as (_, channel):
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        assert (await refused(channel, "Bearer the owner's", OTHER))[0] is Code.RESOURCE_EXHAUSTED
        await call.done_writing()
        assert await call.code() is Code.OK
