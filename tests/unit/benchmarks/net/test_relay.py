"""The relay in virtual time: sockets are real, and a timer fires as soon as nothing else can happen."""

import asyncio
import selectors
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.net.relay import Fault, Relay, TokenBucket
from tests.support.examples import examples
from tests.support.virtual import VirtualLoop, VirtualSelector

LATENESS = 0.005
LONG = 60.0
"""Virtual seconds: longer than any event that may still happen."""


class SocketsThenTimers(VirtualSelector):
    """An event loop in which a timer takes no time: virtual time moves on once the sockets had a moment to report."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(0.002)
        if not events:
            self.now += timeout
        return events


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, asyncio.Queue[Peer]]]:
    """Yield a server's port, and the server's side of each connection that it has accepted."""
    accepted: asyncio.Queue[Peer] = asyncio.Queue()
    server = await asyncio.start_server(lambda *peer: accepted.put_nowait(peer), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], accepted
    server.close()


@asynccontextmanager
async def joined(
    *, uplink_bits_per_second: float = 1e9, downlink_bits_per_second: float = 1e9, one_way_delay_seconds: float = 0.0
) -> AsyncIterator[tuple[Relay, Peer, Peer]]:
    """Yield a relay, and the client's and the server's side of one connection through it."""
    async with (
        serving() as (port, accepted),
        Relay(
            "127.0.0.1",
            port,
            uplink_bits_per_second=uplink_bits_per_second,
            downlink_bits_per_second=downlink_bits_per_second,
            one_way_delay_seconds=one_way_delay_seconds,
        ) as relay,
    ):
        client = await asyncio.open_connection("127.0.0.1", relay.port)
        served = await accepted.get()
        yield relay, client, served
        for _, writer in (client, served):
            writer.transport.abort()


def in_virtual_time(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60 * LONG):  # A call that would hang fails instead.
            await body()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(SocketsThenTimers(0.0))) as runner:
        runner.run(bounded())


def pattern(size: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(size))


async def receive(peer: Peer, size: int) -> tuple[bytes, float]:
    """Return `size` bytes, and the virtual seconds between the first and the last of them."""
    loop = asyncio.get_running_loop()
    data = await peer[0].read(size)
    first, begin = len(data), loop.time()
    while len(data) < size:
        data += await peer[0].read(size - len(data))
    return data, (loop.time() - begin) * size / max(1, size - first)


# --- the bucket, in numbers alone

rates = st.floats(1e3, 1e9)
sizes = st.lists(st.integers(1, 16384), min_size=1, max_size=200)


@settings(deadline=None)
@given(rate=rates, sizes=sizes, pauses=st.lists(st.floats(0, 1), min_size=200, max_size=200))
def test_no_span_of_time_lets_more_through_than_the_rate(rate, sizes, pauses):
    bucket = TokenBucket(rate, LATENESS)
    now, left = 0.0, []
    for size, pause in zip(sizes, pauses, strict=False):
        now = max(now + pause, bucket.reserve(size, now + pause))
        left.append((now, size))
    for start, (begin, first) in enumerate(left):
        passed = -first
        for end, size in left[start:]:
            passed += size
            assert passed <= rate * (end - begin + LATENESS) * (1 + 1e-9) + 1e-6


@settings(deadline=None)
@given(rate=rates, sizes=sizes, late=st.lists(st.floats(0, LATENESS), min_size=200, max_size=200))
def test_timers_that_fire_late_do_not_lower_the_rate(rate, sizes, late):
    bucket = TokenBucket(rate, LATENESS)
    now = 100.0
    for size, lateness in zip(sizes, late, strict=False):
        due = bucket.reserve(size, now)
        now = max(now, due) + (lateness if due > now else 0.0)
    assert now <= 100.0 + sum(sizes) / rate + LATENESS + 1e-6


@settings(deadline=None)
@given(rate=rates, factor=st.floats(0.1, 10))
def test_a_new_rate_holds_from_the_next_reservation(rate, factor):
    bucket = TokenBucket(rate, LATENESS)
    before = bucket.reserve(16384, 0.0)
    bucket.bytes_per_second = rate * factor
    after = bucket.reserve(16384, before)
    assert after - before == pytest.approx(16384 / (rate * factor))


# --- the relay


@pytest.mark.parametrize("megabits", [1, 20, 100])
@pytest.mark.parametrize("upwards", [True, False])
def test_each_direction_has_its_rate(megabits, upwards):
    async def body() -> None:
        rates = (megabits * 1e6, 1e9) if upwards else (1e9, megabits * 1e6)
        async with joined(uplink_bits_per_second=rates[0], downlink_bits_per_second=rates[1]) as (_, client, served):
            sender, receiver = (client, served) if upwards else (served, client)
            data = pattern(400_000)
            sender[1].write(data)
            arrived, seconds = await receive(receiver, len(data))
            assert arrived == data
            assert len(data) * 8 / seconds == pytest.approx(megabits * 1e6, rel=0.05)

    in_virtual_time(body)


def test_connections_share_the_rate():
    async def body() -> None:
        async with joined(uplink_bits_per_second=20e6) as (relay, client, served):
            extra = socket.create_connection(("127.0.0.1", relay.port))
            extra.setblocking(False)
            loop = asyncio.get_running_loop()
            flood = asyncio.create_task(loop.sock_sendall(extra, pattern(2_000_000)))
            client[1].write(pattern(200_000))
            _, seconds = await receive(served, 200_000)
            assert 200_000 * 8 / seconds == pytest.approx(10e6, rel=0.1)
            flood.cancel()
            extra.close()

    in_virtual_time(body)


def test_the_rate_may_change_under_way():
    async def body() -> None:
        async with joined(uplink_bits_per_second=50e6) as (relay, client, served):
            client[1].write(pattern(800_000))
            await receive(served, 200_000)
            relay.uplink.bits_per_second = 5e6
            await receive(served, 200_000)  # bytes sent at the old rate
            _, seconds = await receive(served, 200_000)
            assert 200_000 * 8 / seconds == pytest.approx(5e6, rel=0.05)

    in_virtual_time(body)


@settings(max_examples=examples(15), deadline=None)
@given(delay=st.floats(0.0, 2.0), size=st.integers(1, 1000))
def test_a_byte_arrives_after_the_delay_and_not_before(delay, size):
    async def body() -> None:
        async with joined(one_way_delay_seconds=delay) as (_, client, served):
            loop = asyncio.get_running_loop()
            start = loop.time()
            client[1].write(pattern(size))
            assert await served[0].readexactly(size) == pattern(size)
            assert delay <= loop.time() - start <= delay + 0.01

    in_virtual_time(body)


def test_delay_does_not_lower_the_rate():
    async def body() -> None:
        async with joined(uplink_bits_per_second=20e6, one_way_delay_seconds=0.5) as (_, client, served):
            client[1].write(pattern(1_000_000))
            _, seconds = await receive(served, 1_000_000)
            assert 1_000_000 * 8 / seconds == pytest.approx(20e6, rel=0.05)

    in_virtual_time(body)


@settings(max_examples=examples(15), deadline=None)
@given(pieces=st.lists(st.binary(min_size=1, max_size=40_000), max_size=12), megabits=st.floats(5, 500))
def test_bytes_arrive_intact_in_order_and_counted_and_so_does_the_end(pieces, megabits):
    async def body() -> None:
        async with joined(uplink_bits_per_second=megabits * 1e6, one_way_delay_seconds=0.01) as (relay, client, served):
            for piece in pieces:
                client[1].write(piece)
            client[1].write_eof()
            assert await served[0].read() == b"".join(pieces)
            assert relay.uplink.forwarded_bytes == sum(map(len, pieces))
            served[1].write(b"answer")
            served[1].write_eof()
            assert await client[0].read() == b"answer"
            assert relay.downlink.forwarded_bytes == len(b"answer")

    in_virtual_time(body)


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_receiver_that_does_not_read_stops_the_sender(delay):
    async def body() -> None:
        async with joined(uplink_bits_per_second=100e6, one_way_delay_seconds=delay) as (relay, client, served):
            end = client[1].get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            served[1].transport.pause_reading()
            served[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client[1].write(pattern(20_000_000))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(LONG):
                    await client[1].drain()
            taken = 20_000_000 - client[1].transport.get_write_buffer_size()
            assert taken - relay.uplink.forwarded_bytes < 450_000 + 100e6 / 8 * delay

    in_virtual_time(body)


def test_a_slow_link_holds_the_sender_back():
    async def body() -> None:
        async with joined(uplink_bits_per_second=50e6) as (relay, client, served):
            client[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            client[1].write(pattern(20_000_000))
            await receive(served, 3_000_000)
            taken = 20_000_000 - client[1].transport.get_write_buffer_size()
            assert taken - relay.uplink.forwarded_bytes < 450_000

    in_virtual_time(body)


def test_a_dropped_link_resets_both_ends_and_takes_new_connections():
    async def body() -> None:
        async with serving() as (port, accepted), Relay("127.0.0.1", port) as relay:
            for payload in (b"first", b"second"):
                client = await asyncio.open_connection("127.0.0.1", relay.port)
                served = await accepted.get()
                client[1].write(payload)
                assert await served[0].readexactly(len(payload)) == payload
                relay.inject(Fault.DROP)
                for reader, writer in (client, served):
                    with pytest.raises(ConnectionResetError):
                        await reader.read()
                    writer.close()

    in_virtual_time(body)


async def hears_nothing(peer: Peer) -> None:
    """Check that nothing arrives: no data, no end of the stream, no error."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LONG):
            await peer[0].read(1)


def test_a_frozen_link_is_silent_and_goes_on_where_it_was():
    async def body() -> None:
        async with joined(one_way_delay_seconds=0.01) as (relay, client, served):
            client[1].write(b"a")
            relay.inject(Fault.FREEZE)
            served[1].write(b"b")
            await hears_nothing(served)
            await hears_nothing(client)
            relay.inject(Fault.RESUME)
            assert await served[0].readexactly(1) == b"a"
            assert await client[0].readexactly(1) == b"b"

    in_virtual_time(body)


def test_one_direction_can_freeze_alone():
    async def body() -> None:
        async with joined() as (relay, client, served):
            relay.inject(Fault.FREEZE, relay.downlink)
            client[1].write(b"a")
            assert await served[0].readexactly(1) == b"a"
            served[1].write(b"b")
            await hears_nothing(client)

    in_virtual_time(body)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("upwards_only", [True, False])
def test_a_frozen_link_hides_that_a_peer_left(reset, upwards_only):
    async def body() -> None:
        async with joined() as (relay, client, served):
            client[1].write(b"a")
            await served[0].readexactly(1)
            relay.inject(Fault.FREEZE, *([relay.uplink] if upwards_only else []))
            if reset:
                client[1].get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
                )
                client[1].transport.abort()
            else:
                client[1].close()
            await hears_nothing(served)
            relay.inject(Fault.RESUME)
            if reset:
                with pytest.raises(ConnectionResetError):
                    await served[0].read()
            else:
                assert await served[0].read() == b""

    in_virtual_time(body)


@given(size=st.integers(1, 5000))
@settings(max_examples=examples(15), deadline=None)
def test_corruption_flips_one_bit_once_in_the_lane_named(size):
    async def body() -> None:
        async with joined() as (relay, client, served):
            relay.inject(Fault.CORRUPT, relay.uplink)
            for expected_flips in (1, 0):
                client[1].write(pattern(size))
                arrived = await served[0].readexactly(size)
                flips = sum((a ^ b).bit_count() for a, b in zip(arrived, pattern(size), strict=True))
                assert flips == expected_flips
            served[1].write(pattern(size))
            assert await client[0].readexactly(size) == pattern(size)

    in_virtual_time(body)


def test_a_server_that_is_not_there_resets_the_client():
    async def body() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            async with Relay("127.0.0.1", unused.getsockname()[1]) as relay:
                reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
                with pytest.raises(ConnectionResetError):
                    await reader.read()
                writer.close()

    in_virtual_time(body)


def test_nothing_of_the_relay_outlives_it():
    async def body() -> None:
        before = asyncio.all_tasks()
        async with joined() as (relay, client, served):
            client[1].write(b"a")
            await served[0].readexactly(1)
            port = relay.port
        assert asyncio.all_tasks() == before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    in_virtual_time(body)
