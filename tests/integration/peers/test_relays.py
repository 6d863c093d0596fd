"""A trainer that carries bytes to another one: only to what its operator allows, as many as allowed, and as they are."""

import asyncio
import gc
import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from cloud_trainer.config import PeersConfig
from cloud_trainer.rpc import relays
from shared.client.config import TrainerAddressConfig
from shared.client.connection import TrainerConnection
from shared.client.credentials import PLAIN
from shared.client.relay_socket import RelaySocket, relay_call
from shared.config import LinkConfig
from shared.errors import BusyError, ProtocolError, RefusedError, UnreachableError
from shared.events import ignore
from shared.transport.rpc.call_status import CallStatus
from shared.transport.rpc.carried_bytes import CARRIED_BYTES, WAITING_BYTES
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.peers.strangers import path_of
from tests.support.running import held_port, running_trainer, trainer_process

RUN = "e" * 32
MOST_HELD_BYTES = 64 * 1024 * 1024
"""Memory that the relays of one subject may take together."""


def peak_bytes(process):
    """Return the most that was resident so far."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@asynccontextmanager
async def connected(address):
    connection = TrainerConnection(TrainerAddressConfig(address=address), LinkConfig(), ignore, PLAIN)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def echo():
    """A port that sends back what comes."""

    async def serve(reader, writer):
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_bytes_come_back_through_a_socket_as_they_were():
    async with (
        echo() as far,
        running_trainer(f'peers.allowed=["{far}"]') as server,
        connected(server.address) as connection,
    ):
        relay_socket = RelaySocket(lambda address: relay_call(connection, address, RUN), far)
        path = await relay_socket.open()
        reader, writer = await asyncio.open_unix_connection(path)
        sent = bytes(range(256)) * 2000
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await relay_socket.close()
        assert not path.parent.exists()


async def test_an_address_that_is_not_allowed_or_where_nobody_is_is_refused_with_a_sentence():
    with held_port() as nobody:
        allowed = f"127.0.0.1:{nobody}"
        async with (
            running_trainer(f'peers.allowed=["{allowed}"]') as server,
            connected(server.address) as connection,
        ):
            for address, kind, says in [
                (server.address, RefusedError, r"its operator has not allowed that address \(peers\.allowed\)"),
                ("unix:/run/x.sock", RefusedError, "peers.allowed"),
                (allowed, UnreachableError, f"this trainer cannot reach {allowed}: "),
            ]:
                with pytest.raises(kind, match=says):
                    async with relay_call(connection, address, RUN):
                        pass


async def test_a_caller_has_so_many_at_one_time_and_places_come_back():
    async with (
        echo() as far,
        running_trainer(f'peers.allowed=["{far}"]', "peers.max_relays_per_subject=2") as server,
        connected(server.address) as connection,
    ):
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(relay_call(connection, far, RUN))
            with pytest.raises(BusyError, match=r"peers\.max_relays_per_subject"):
                await stack.enter_async_context(relay_call(connection, far, RUN))
        while True:  # the trainer hears of the ends a moment later
            try:
                async with relay_call(connection, far, RUN) as relay:
                    await relay.send(b"once more")
                    assert await relay.receive() == b"once more"
                    break
            except BusyError:
                await asyncio.sleep(0)


async def test_one_that_carries_nothing_ends(monkeypatch):
    monkeypatch.setattr(relays, "IDLE_SECONDS", 0.1)
    async with (
        echo() as far,
        running_trainer(f'peers.allowed=["{far}"]') as server,
        connected(server.address) as connection,
        relay_call(connection, far, RUN) as relay,
    ):
        await relay.send(b"something")
        assert await relay.receive() == b"something"
        assert await relay.receive() is None


async def refusal_of(connection, messages):
    """The failure that the trainer ends a relay with to which these messages, as bytes, are sent."""
    call = connection.tensors.stream_stream(path_of("Relay"))(messages)
    status = CallStatus(call)  # a message that meets the end of the stream gives the call another one
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await status.failure()


OPENING = pb.RelayOpening(protocol_version=PROTOCOL_VERSION, address="")


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], "INVALID_ARGUMENT"),
        ([{"data": b"x"}], "INVALID_ARGUMENT"),
        ([{"opened": pb.RelayOpened()}], "INVALID_ARGUMENT"),
        ([{"opening": pb.RelayOpening(protocol_version=1)}], "FAILED_PRECONDITION"),
        ([{"opening": OPENING}, {"opening": OPENING}], "INVALID_ARGUMENT"),
        ([{"opening": OPENING}, {}], "INVALID_ARGUMENT"),
        ([{"opening": OPENING}, {"data": bytes(CARRIED_BYTES + 1)}], "INVALID_ARGUMENT"),
    ],
)
async def test_messages_that_no_agent_sends_are_refused(messages, code):
    async with (
        echo() as far,
        running_trainer(f'peers.allowed=["{far}"]') as server,
        connected(server.address) as connection,
    ):

        async def sent():
            for one in messages:
                message = pb.RelayMessage(**one)
                if message.HasField("opening"):
                    message.opening.address = far
                yield message.SerializeToString()

        assert (await refusal_of(connection, sent())).code().name == code


@contextmanager
def deaf():
    """A port that takes connections and reads nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_an_agent_with_more_bytes_under_way_than_may_wait_is_refused():
    with deaf() as far:
        async with running_trainer(f'peers.allowed=["{far}"]') as server, connected(server.address) as connection:

            async def sent():
                yield pb.RelayMessage(
                    opening=pb.RelayOpening(protocol_version=PROTOCOL_VERSION, address=far)
                ).SerializeToString()
                while True:
                    yield pb.RelayMessage(data=bytes(CARRIED_BYTES)).SerializeToString()

            refusal = await refusal_of(connection, sent())
            assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert re.search(f"bytes of a relay wait.*it may be {WAITING_BYTES}", refusal.details())


async def test_an_agent_waits_for_a_port_that_does_not_read_yet_and_loses_nothing():
    count, begin_reading, got = 64, asyncio.Event(), bytearray()

    async def read(reader, writer):
        await begin_reading.wait()
        while len(got) < count * CARRIED_BYTES:
            got.extend(await reader.read(CARRIED_BYTES))
        writer.close()

    late = await asyncio.start_server(read, "127.0.0.1", 0)
    far = f"127.0.0.1:{late.sockets[0].getsockname()[1]}"
    chunks = [bytes([number]) * CARRIED_BYTES for number in range(count)]
    async with (
        late,
        running_trainer(f'peers.allowed=["{far}"]') as server,
        connected(server.address) as connection,
        relay_call(connection, far, RUN) as relay,
    ):
        ended = asyncio.create_task(relay.receive())
        for number, chunk in enumerate(chunks):
            if number * CARRIED_BYTES == WAITING_BYTES:
                begin_reading.set()
            await relay.send(chunk)
        assert await ended is None
    assert got == b"".join(chunks)


@pytest.mark.slow
async def test_relays_to_a_port_that_never_reads_hold_little_of_a_trainer():
    with deaf() as far, trainer_process(f'peers.allowed=["{far}"]', "compute.threads=1") as (process, address):
        async with connected(address) as connection, AsyncExitStack() as stack:
            before = peak_bytes(process)
            for _ in range(PeersConfig().max_relays_per_subject):
                relay = await stack.enter_async_context(relay_call(connection, far, RUN))
                for _ in range(WAITING_BYTES // CARRIED_BYTES):
                    await relay.send(bytes(CARRIED_BYTES))
            assert peak_bytes(process) - before < MOST_HELD_BYTES


@asynccontextmanager
async def stranger(relay):
    """The address of a peer that answers `Relay` in its own way."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(relay)
    service, _, name = path_of("Relay").removeprefix("/").partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)
    del server
    gc.collect()


@pytest.mark.parametrize(
    "answers",
    [
        [{"data": b"x"}],
        [{"opened": pb.RelayOpened()}, {}],
        [{"opened": pb.RelayOpened()}, {"data": bytes(CARRIED_BYTES + 1)}],
        [{"opened": pb.RelayOpened()}, {"opening": OPENING}],
    ],
)
async def test_answers_that_no_trainer_sends_end_the_way(answers):
    async def relay(requests, context):
        await anext(requests)
        for one in answers:
            await context.write(pb.RelayMessage(**one).SerializeToString())
        await asyncio.sleep(60)

    async with stranger(relay) as address, connected(address) as connection:
        with pytest.raises(ProtocolError):
            async with relay_call(connection, "far:1", RUN) as open_relay:
                await open_relay.receive()


@pytest.mark.parametrize(
    ("refusal", "kind", "says"),
    [(None, ProtocolError, "did not open the relay"), ("no", RefusedError, "refused: no")],
)
async def test_an_end_that_meets_the_opening_on_its_way_is_told_by_its_own_reason(refusal, kind, says):
    """The end of a stream has gRPC call a write that meets it a lost connection, once in fifty times here."""

    async def relay(_requests, context):
        if refusal is not None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)

    async with stranger(relay) as address, connected(address) as connection:
        for _ in range(200):
            with pytest.raises(kind, match=says):
                async with relay_call(connection, "far:1", RUN):
                    pass


async def test_without_a_place_for_a_socket_that_is_said_and_nothing_is_left(tmp_path, monkeypatch):
    place = tmp_path / ("x" * 120)
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    async with running_trainer() as server, connected(server.address) as connection:
        with pytest.raises(UnreachableError, match="no socket can be made here"):
            await RelaySocket(lambda address: relay_call(connection, address, RUN), "127.0.0.1:1").open()
    assert not [*place.iterdir()]


async def test_a_connection_that_is_not_carried_is_closed():
    async with running_trainer() as server, connected(server.address) as connection:
        relay_socket = RelaySocket(lambda address: relay_call(connection, address, RUN), "127.0.0.1:1")
        reader, writer = await asyncio.open_unix_connection(await relay_socket.open())
        assert await reader.read() == b""
        writer.close()
        await relay_socket.close()
