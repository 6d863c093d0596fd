"""Credits: the bytes under way stay within the receiver's grant and the window, and the stream never stands still."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.transport.stream.credits import (
    BURST_SECONDS,
    LONGEST_PAUSE_SECONDS,
    UNPACED_BYTES,
    ReceiveLedger,
    SendCredits,
)
from shared.wire.isthmus.v1.tensor_pb2 import Ack
from tests.support.virtual import run_virtually

GIB = 1 << 30


async def settled():
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def waits(credits, count):
    """Tell whether a chunk of so many bytes has to wait. A waiting one is given up."""
    task = asyncio.create_task(credits.take(count))
    await settled()
    if task.done():
        await task
        return False
    task.cancel()
    return True


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 200), st.data())
def test_no_more_is_under_way_than_both_bounds_allow_but_for_a_single_chunk(sizes, window, data):
    async def scenario():
        credits = SendCredits(window)
        granted = window
        taken = []

        async def send():
            for size in sizes:
                await credits.take(size)
                under_way = credits.under_way_bytes
                taken.append(size)
                assert under_way <= min(granted, credits.window_bytes) or under_way == size

        sender = asyncio.create_task(send())
        await settled()
        while not sender.done():
            received = data.draw(st.integers(credits.acknowledged_bytes, credits.sent_bytes))
            if data.draw(st.booleans()):
                received = credits.sent_bytes  # At some time, everything is acknowledged.
            granted = data.draw(st.integers(0, 300))
            credits.window_bytes = data.draw(st.integers(0, 300))
            credits.acknowledge(Ack(received_bytes=received, credit_bytes=granted))
            await settled()
        await sender
        assert taken == sizes, "whatever the bounds were, the stream went on and in order"
        assert credits.sent_bytes == sum(sizes)

    asyncio.run(scenario())


async def test_both_sides_of_the_bound():
    credits = SendCredits(100)
    assert not await waits(credits, 60)
    assert not await waits(credits, 40)
    assert await waits(credits, 1)
    credits.acknowledge(Ack(received_bytes=60, credit_bytes=50))
    assert await waits(credits, 11), "40 under way and 50 granted"
    assert not await waits(credits, 10)
    assert credits.sent_bytes == 110


async def test_a_chunk_larger_than_every_bound_goes_alone():
    credits = SendCredits(1)
    assert not await waits(credits, GIB)
    assert await waits(credits, 1)
    credits.acknowledge(Ack(received_bytes=GIB, credit_bytes=0))
    assert not await waits(credits, GIB), "a grant of nothing does not stop the stream for good"


async def test_an_ack_wakes_a_waiting_sender():
    credits = SendCredits(10)
    await credits.take(10)
    waiting = asyncio.create_task(credits.take(10))
    await settled()
    assert not waiting.done()
    credits.acknowledge(Ack(received_bytes=5, credit_bytes=10))
    await settled()
    assert not waiting.done()
    credits.acknowledge(Ack(received_bytes=10, credit_bytes=10))
    await settled()
    assert waiting.done()


def seconds_to_send(sizes, pace):
    """Return the time in which chunks of these sizes are let through, one after the other. pace: bits per second."""

    async def scenario():
        loop, credits = asyncio.get_running_loop(), SendCredits(GIB)
        credits.pace_bits_per_second = pace
        began = loop.time()
        for size in sizes:
            await credits.take(size)
        return loop.time() - began

    return run_virtually(scenario)


@settings(deadline=None)
@given(st.lists(st.integers(UNPACED_BYTES + 1, 100_000), min_size=1, max_size=30), st.floats(1e7, 1e9))
def test_the_pace_is_kept_but_for_a_burst(sizes, pace):
    turn = sum(sizes[:-1]) * 8 / pace  # of the last, when all goes at the pace
    assert max(turn - BURST_SECONDS, 0.0) - 1e-6 <= seconds_to_send(sizes, pace) <= turn + 1e-6


@settings(deadline=None)
@given(st.floats(0, 1, exclude_min=True), st.lists(st.integers(1, UNPACED_BYTES // 8), min_size=1, max_size=8))
def test_little_may_be_under_way_at_any_pace(pace, sizes):
    assert seconds_to_send(sizes, pace) == 0


@settings(deadline=None)
@given(st.floats(0, 1, exclude_min=True), st.integers(1, 40))
def test_at_a_pace_of_next_to_nothing_the_stream_goes_on(pace, count):
    assert seconds_to_send([100_000] * count, pace) <= count * LONGEST_PAUSE_SECONDS * 1.000001


async def test_a_repeated_or_lost_ack_does_no_harm():
    credits, other = SendCredits(100), SendCredits(100)
    for one in (credits, other):
        await one.take(60)
    for received in (20, 20, 40, 40, 60):
        credits.acknowledge(Ack(received_bytes=received, credit_bytes=100))
    other.acknowledge(Ack(received_bytes=60, credit_bytes=100))
    assert credits.under_way_bytes == other.under_way_bytes == 0
    assert not await waits(credits, 100)
    assert not await waits(other, 100)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**64 - 1))
def test_acks_of_unsent_bytes_or_that_go_back_are_refused(sent, acknowledged, received):
    async def scenario():
        credits = SendCredits(1000)
        await credits.take(sent + acknowledged)
        credits.acknowledge(Ack(received_bytes=acknowledged, credit_bytes=1000))
        if acknowledged <= received <= sent + acknowledged:
            credits.acknowledge(Ack(received_bytes=received))
            assert credits.acknowledged_bytes == received
        else:
            with pytest.raises(ProtocolError, match=f"acknowledges {received} bytes"):
                credits.acknowledge(Ack(received_bytes=received))
            assert credits.acknowledged_bytes == acknowledged, "a refused ack changes nothing"

    asyncio.run(scenario())


@given(st.lists(st.integers(0, GIB), min_size=1), st.integers(1, GIB))
def test_the_ledger_counts_every_byte_and_tells_its_own_time(sizes, credit_bytes):
    ticks = iter(range(1, len(sizes) + 1))
    ledger = ReceiveLedger(credit_bytes, monotonic_nanoseconds=lambda: next(ticks))
    acks = [ledger.add(size) for size in sizes]
    assert [ack.received_bytes for ack in acks] == [sum(sizes[: place + 1]) for place in range(len(sizes))]
    assert [ack.receiver_nanoseconds for ack in acks] == list(range(1, len(sizes) + 1))
    assert {ack.credit_bytes for ack in acks} == {credit_bytes}


@given(st.lists(st.integers(0, 10_000), max_size=20), st.integers(1, 5000))
def test_the_ledgers_grants_are_valid_credits(sizes, credit_bytes):
    async def scenario():
        credits, ledger = SendCredits(credit_bytes), ReceiveLedger(credit_bytes)
        for size in sizes:
            assert not await waits(credits, size), "everything before was acknowledged"
            credits.acknowledge(ledger.add(size))
            assert credits.under_way_bytes == 0

    asyncio.run(scenario())
