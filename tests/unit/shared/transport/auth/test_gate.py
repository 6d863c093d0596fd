"""The gate's treatment of calls with a ticket, on a real socket."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from shared.events import Events
from shared.events.calls import CallMade, CallRefused
from shared.transport.auth.callers import Authenticator, Caller, PeerLink, PeerTicket, caller
from shared.transport.auth.gate import Gate, GateLimits
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import make_token, read_tokens
from shared.transport.rpc.status import status_of

Code = grpc.StatusCode
LINK, OTHER = "/a.Service/Link", "/a.Service/Other"
TICKET = PeerTicket(PeerLink("a session", 3, "near", 0), b"its hash")


class Door:
    """A server behind a gate. `tickets` can be used, and `linked` records the callers that have opened links."""

    def __init__(self, folder, calls_per_second):
        self.token, table = make_token("pi-7", [Scope.TRAIN])
        self.book = folder / "tokens.toml"
        self.book.write_text(table)
        self.tickets = {"good": TICKET}
        self.linked = []
        self.made, self.refused = [], []
        events = Events()
        events.subscribe(CallMade, self.made.append)
        events.subscribe(CallRefused, self.refused.append)
        authenticator = Authenticator(
            Reloaded([self.book], lambda: read_tokens(self.book)), certificates=False, tickets={LINK: self.find}
        )
        scopes = {LINK: Scope.TRAIN, OTHER: Scope.TRAIN}
        self.gate = Gate(authenticator, scopes, GateLimits(calls_per_second, 1), events.emit)

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
async def standing(folder, calls_per_second=1000.0):
    door = Door(folder, calls_per_second)
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


async def nothing():
    """Do nothing else at each look of the watch."""


async def refused(channel, authorization, method=LINK):
    """Make a call that is refused before a message is read, and return its status."""
    call = dialled(channel, authorization, method)
    return await call.code(), await call.details()


async def test_a_call_with_a_ticket_says_for_what_it_was_issued(tmp_path):
    async with standing(tmp_path) as (door, channel):
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        assert [who.ticket for who in door.linked] == [TICKET]
        await call.done_writing()
        assert await call.code() is Code.OK


async def test_a_ticket_that_lets_nobody_in_is_unauthenticated_also_where_the_method_takes_none(tmp_path):
    async with standing(tmp_path) as (door, channel):
        assert (await refused(channel, "Ticket bad"))[0] is Code.UNAUTHENTICATED
        code, sentence = await refused(channel, "Ticket good", OTHER)
        assert code is Code.UNAUTHENTICATED
        assert "dial a link" in sentence
        assert not door.linked


async def test_a_caller_with_wrong_tickets_is_refused_unread_like_any_stranger(tmp_path):
    async with standing(tmp_path, calls_per_second=0.01) as (_, channel):  # one call at once, and the next much later
        codes = [(await refused(channel, "Ticket bad"))[0] for _ in range(2)]
        assert codes == [Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED]
        assert (await refused(channel, "Ticket good"))[0] is Code.RESOURCE_EXHAUSTED


async def test_a_link_ends_when_the_tokens_of_the_session_s_owner_are_withdrawn(tmp_path):
    async with standing(tmp_path) as (door, channel):
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        watching = asyncio.create_task(door.gate.keep_watch(nothing))
        door.book.write_text("# nobody")
        assert await call.code() is Code.UNAUTHENTICATED
        assert "withdrawn the tokens of 'pi-7'" in await call.details()
        watching.cancel()


async def test_every_call_is_an_event_and_so_is_every_refusal(tmp_path):
    async with standing(tmp_path) as (door, channel):
        code, sentence = await refused(channel, "Ticket bad")
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        assert [event.peer.partition(":")[0] for event in door.made] == ["ipv4", "ipv4"]
        (refusal,) = door.refused
        assert (refusal.method, refusal.host, str(refusal.error)) == (LINK, "ipv4:127.0.0.1", sentence)
        assert status_of(refusal.error) is code


async def test_links_count_among_the_calls_of_the_session_s_owner(tmp_path):
    async with standing(tmp_path) as (door, channel):
        call = dialled(channel, "Ticket good")
        await call.write(b"opening")
        assert await call.read() == b"opened"
        assert (await refused(channel, f"Bearer {door.token}", OTHER))[0] is Code.RESOURCE_EXHAUSTED
        await call.done_writing()
        assert await call.code() is Code.OK
