"""Both ends of a stream over links that change, in virtual time: full links, short queues, and no standstill."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.transport.stream.credits import CHUNK_SECONDS, LONGEST_PAUSE_SECONDS
from shared.transport.stream.duplex import LEAST_CHUNKS_OF_A_TENSOR, Duplex
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.transport.stream.link_estimate import MEASURED_AGAIN_SECONDS
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader
from tests.support.examples import examples
from tests.support.virtual import Wire, cloud_end, edge_end, run_virtually

DEEP = 1 << 24
"""Bytes of a buffer in front of a link that accepts everything."""
SLOWER = st.floats(6, 8.5).map(lambda exponent: 10**exponent)
ROUND_TRIPS = st.floats(0.0002, 0.2)
CALL_SECONDS = 0.250


def tensor(size: int) -> WireTensor:
    header, payload = TensorHeader(encoded_bytes=size), memoryview(bytes(size))
    return WireTensor(TensorKey(0, Role.ROLE_FEATURE), 0, header, payload)


@asynccontextmanager
async def busy_stream(
    up: Wire, down: Wire, size: int = 500_000, *, pause_seconds: float = 0.0, both_ways: bool = False
) -> AsyncIterator[tuple[Duplex, Duplex]]:
    """Yield a stream on which the edge sends one tensor after the other, or both sides do."""
    edge, cloud = edge_end(up, down), cloud_end(up, down)

    async def send(end: Duplex) -> None:
        while True:
            await end.send(tensor(256))  # labels
            await end.send(tensor(size))
            await asyncio.sleep(pause_seconds)

    async def receive(end: Duplex) -> None:
        while await end.receive() is not None:
            pass

    async with asyncio.TaskGroup() as tasks:
        work = [send(edge), receive(edge), receive(cloud), *([send(cloud)] if both_ways else [])]
        running = [tasks.create_task(coroutine) for coroutine in work]
        yield edge, cloud
        for task in running:
            task.cancel()


async def goodput(wire: Wire, seconds: float) -> float:
    """Return the payload of the next seconds, as a share of the wire's capacity."""
    before = wire.delivered_bytes
    await asyncio.sleep(seconds)
    return (wire.delivered_bytes - before) * 8 / seconds / wire.bits_per_second


async def acks(end: Duplex, count: int) -> None:
    """Wait until so many more acks have arrived."""
    come, learn = asyncio.Semaphore(0), end.estimate.acknowledged

    def counted(*values: float) -> None:
        learn(*values)
        come.release()

    end.estimate.acknowledged = counted
    for _ in range(count):
        await come.acquire()
    end.estimate.acknowledged = learn


async def until(condition: Callable[[], bool], limit_seconds: float) -> float:
    """Wait until the condition holds, and return the seconds. Fails beyond the limit."""
    began = asyncio.get_running_loop().time()
    while not condition():
        assert asyncio.get_running_loop().time() - began < limit_seconds
        await asyncio.sleep(0.001)
    return asyncio.get_running_loop().time() - began


async def exchange(near: Duplex, far: Duplex, steps: int, size: int, seconds: float) -> None:
    """Send a tensor there and one back, so many times. Either end takes this time to answer."""
    arrived = {end: asyncio.Semaphore(0) for end in (near, far)}

    async def receive(end: Duplex) -> None:
        while True:
            _, wholes = await end.receive()
            for _ in wholes:
                arrived[end].release()

    async with asyncio.TaskGroup() as tasks:
        receiving = [tasks.create_task(receive(end)) for end in (near, far)]
        for _ in range(steps):
            for sender, receiver in ((near, far), (far, near)):
                await sender.send(tensor(size))
                await arrived[receiver].acquire()
                await asyncio.sleep(seconds)
        for task in receiving:
            task.cancel()


def is_known(end: Duplex, wire: Wire) -> bool:
    return end.estimate.rate.bits_per_second == pytest.approx(wire.bits_per_second, rel=0.1)


@settings(max_examples=examples(25), deadline=None)
@given(st.floats(6, 10).map(lambda exponent: 10**exponent), ROUND_TRIPS, st.booleans())
def test_ten_acks_measure_each_direction(rate, round_trip, both_ways):
    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down, 2_000_000, both_ways=both_ways) as (edge, cloud):
            await acks(edge, 11)  # the first belongs to the labels
            assert is_known(edge, up)
            if both_ways:
                await acks(cloud, 11)
                assert is_known(cloud, down)

    run_virtually(main)


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(SLOWER, ROUND_TRIPS, st.sampled_from([1 << 16, 1 << 20, DEEP]), st.sampled_from([100_000, 500_000]))
@example(10**8.5, 0.125, 1 << 16, 100_000)  # far and fast: much is under way
def test_a_steady_link_is_kept_full(rate, round_trip, buffer, size):
    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=buffer) for _ in range(2))
        async with busy_stream(up, down, size):
            await asyncio.sleep(1.0 + 4e7 / rate)
            seconds = 5.0 + 4e7 / rate
            # Every ten seconds, the queue may run dry for less than a round trip.
            assert await goodput(up, seconds) > 0.97 - (1 + seconds / 10) * round_trip / seconds

    run_virtually(main)


@settings(max_examples=examples(20), deadline=None)
@given(st.floats(6.5, 8.5).map(lambda exponent: 10**exponent), ROUND_TRIPS, st.sampled_from([0.1, 0.3, 3.0, 10.0]))
def test_a_link_that_has_changed_is_known_and_full_again_within_some_round_trips(rate, round_trip, factor):
    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down) as (edge, _):
            await asyncio.sleep(2.0 + 4e7 / rate + 20 * round_trip)
            before = up.queued_bytes + rate * round_trip / 8
            up.bits_per_second = rate * factor
            # The bytes under way have to arrive first, and then a few chunks of the size that suited the old rate.
            emptied = round_trip + 2 * before * 8 / up.bits_per_second
            await until(lambda: is_known(edge, up), 35 * round_trip + emptied + 0.3)
            await asyncio.sleep(5 * round_trip + emptied)
            assert await goodput(up, 10 * round_trip + 2.0 + 1e7 / up.bits_per_second) > 0.9

    run_virtually(main)


@settings(max_examples=examples(10), deadline=None)
@given(SLOWER, ROUND_TRIPS, st.floats(1, 10))
def test_after_a_stall_the_link_is_full_and_as_fast_as_it_was(rate, round_trip, seconds):
    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down) as (edge, _):
            await asyncio.sleep(2.0 + 4e7 / rate)
            up.stalled_until = asyncio.get_running_loop().time() + seconds
            await asyncio.sleep(seconds + 5 * round_trip)
            assert is_known(edge, up)
            assert await goodput(up, 2.0 + 1e7 / rate + 10 * round_trip) > 0.9

    run_virtually(main)


@pytest.mark.first_case
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_deep_buffer_stays_short_and_a_control_call_quick(both_ways):
    async def main():
        up, down = (Wire(20e6, 0.02, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down, both_ways=both_ways):
            await asyncio.sleep(3.0)
            filled, queued = asyncio.create_task(goodput(up, 60.0)), []
            while not filled.done():
                await asyncio.sleep(0.01)
                # A call waits for the queues of both directions.
                assert 0.04 + (up.queued_bytes + down.queued_bytes) * 8 / 20e6 < CALL_SECONDS
                queued.append(up.queued_bytes)
            assert await filled > 0.97
            if not both_ways:
                assert median(queued) < 1.4 * 20e6 / 8 * 0.04, "about one bandwidth-delay product waits"

    run_virtually(main)


@settings(max_examples=examples(15), deadline=None)
@given(st.floats(7, 8).map(lambda exponent: 10**exponent), st.floats(0.0002, 0.06))
def test_both_directions_are_full_at_once(rate, round_trip):
    """Acks that wait in the other direction's queue arrive in bursts. The pace keeps these from becoming queues again."""

    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down, both_ways=True):
            await asyncio.sleep(3.0)
            for share in await asyncio.gather(goodput(up, 10.0), goodput(down, 10.0)):
                assert share > 0.95

    run_virtually(main)


@settings(max_examples=examples(10), deadline=None)
@given(st.floats(0.001, 0.02), st.floats(0.05, 0.15))
def test_a_way_that_has_become_longer_is_filled_again(before, after):
    async def main():
        up, down = (Wire(20e6, before, buffer_bytes=DEEP) for _ in range(2))
        async with busy_stream(up, down):
            await asyncio.sleep(3.0)
            up.delay_seconds = after
            await asyncio.sleep(15.0)
            assert await goodput(up, 5.0) > 0.95

    run_virtually(main)


@settings(max_examples=examples(10), deadline=None)
@given(st.sampled_from([20_000, 100_000, 2_000_000]), st.floats(0.1, 2.0))
def test_pauses_between_tensors_do_not_lower_the_rate(size, pause):
    async def main():
        up, down = Wire(20e6, 0.02), Wire(20e6, 0.02)
        async with busy_stream(up, down, size, pause_seconds=pause) as (edge, _):
            await acks(edge, 30)
            for _ in range(20):
                await asyncio.sleep(0.3)
                assert is_known(edge, up)

    run_virtually(main)


STEPS = 50


@settings(max_examples=examples(20), deadline=None)
@given(st.floats(0.001, 0.15), st.floats(0.1, 1.4))
def test_a_step_is_one_message_each_way_however_long_it_takes(seconds, chunks):
    """Acks go with tensors, and no tensor leaves a short chunk over."""
    rate = 300e6
    size = int(chunks * CHUNK_SECONDS * rate / 8)

    async def main():
        up, down = Wire(rate, 0.0005, buffer_bytes=DEEP), Wire(rate, 0.0005, buffer_bytes=DEEP)
        edge, cloud = edge_end(up, down), cloud_end(up, down)
        await exchange(edge, cloud, 40, size, 0.0)
        before = up.delivered_messages, down.delivered_messages
        await exchange(edge, cloud, STEPS, size, seconds)
        for wire, sent in zip((up, down), before, strict=True):
            assert wire.delivered_messages - sent <= 1.1 * STEPS

    run_virtually(main)


@pytest.mark.parametrize(("late", "messages"), [(1, 1), (2, LEAST_CHUNKS_OF_A_TENSOR)])
def test_a_link_is_measured_again_when_two_chunks_in_a_row_were_late(late, messages):
    """A single late one may have met a busy peer."""
    size, delays = 200_000, []

    async def main():
        up, down = (Wire(1e9, 0.0005, jitter=lambda: delays.pop() if delays else 0.0) for _ in range(2))
        edge, cloud = edge_end(up, down), cloud_end(up, down)
        await exchange(edge, cloud, 40, size, 0.0)
        for _ in range(late):
            delays.append(0.1)
            await exchange(edge, cloud, 1, size, 0.001)
        before = up.delivered_messages
        await exchange(edge, cloud, 1, size, 0.001)
        assert up.delivered_messages - before == messages

    run_virtually(main)


def test_a_link_that_slowly_becomes_slower_is_measured_again_after_a_while():
    """No ack is much later than those before."""
    size = 400_000

    async def main():
        up, down = Wire(300e6, 0.0005), Wire(300e6, 0.0005)
        edge, cloud = edge_end(up, down), cloud_end(up, down)
        await exchange(edge, cloud, 40, size, 0.0)
        for _ in range(50):
            up.bits_per_second *= 0.97
            await exchange(edge, cloud, 2, size, 0.01)
        assert not is_known(edge, up)
        await exchange(edge, cloud, 60, size, MEASURED_AGAIN_SECONDS / 100)
        assert is_known(edge, up)

    run_virtually(main)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=30),
    st.floats(4, 9).map(lambda exponent: 10**exponent),
    st.floats(0, 2.0),
    st.floats(0, 0.2),
    st.integers(0, 1000).map(random.Random),
)
def test_whatever_the_delays_every_byte_goes(sizes, rate, jitter, delay, chance: random.Random):
    """The time follows from the link and the delays: no measurement makes the sender wait without a bound."""

    async def main():
        def late() -> float:
            return chance.uniform(0, jitter) if chance.random() < 0.3 else 0.0

        loop = asyncio.get_running_loop()
        up, down = Wire(rate, delay, jitter=late), Wire(rate, delay, jitter=late)
        edge, cloud = edge_end(up, down), cloud_end(up, down)
        arrived = 0

        async def send() -> None:
            for size in sizes:
                await edge.send(tensor(size))
                await asyncio.sleep(late() / 10)

        async def receive() -> None:
            nonlocal arrived
            while arrived < sum(sizes):
                _, wholes = await cloud.receive()
                arrived += sum(len(whole.payload) for whole in wholes)

        began = loop.time()
        hearing = asyncio.create_task(edge.receive())
        await asyncio.gather(send(), receive())
        hearing.cancel()
        # Every message of the worst case, a chunk at a time and each as late as possible.
        chunks = len(sizes) + sum(sizes) / 32_768
        slowest = chunks * (2 * delay + 2.2 * jitter + LONGEST_PAUSE_SECONDS + 0.01) + sum(sizes) * 10 / rate
        assert loop.time() - began < slowest + 10

    run_virtually(main)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 30_000), st.floats(0.001, 0.3), st.integers(0, 1000).map(random.Random))
def test_small_tensors_on_a_busy_machine_never_wait_for_long(size, lateness, chance: random.Random):
    """Such tensors show the lateness of the receiver alone. At a pace computed from it, a chunk would wait for minutes."""

    async def main():
        def late() -> float:
            return chance.uniform(0, lateness) if chance.random() < 0.2 else 0.0

        loop = asyncio.get_running_loop()
        up, down = Wire(1e9, 0.0001, jitter=late), Wire(1e9, 0.0001, jitter=late)
        edge, cloud = edge_end(up, down), cloud_end(up, down)
        hearing = asyncio.create_task(edge.receive())
        arrived = asyncio.Semaphore(0)

        async def receive() -> None:
            while True:
                await cloud.receive()
                arrived.release()

        receiving = asyncio.create_task(receive())
        for _ in range(200):
            began = loop.time()
            for part in (tensor(256), tensor(size)):
                await edge.send(part)
            for _ in range(2):
                await arrived.acquire()
            # Two pauses: sometimes the second waits for the first one's ack. Both directions may be late.
            assert loop.time() - began <= 2 * LONGEST_PAUSE_SECONDS + 3 * lateness + 0.01
            await asyncio.sleep(0.003 + late())
        hearing.cancel()
        receiving.cancel()

    run_virtually(main)
