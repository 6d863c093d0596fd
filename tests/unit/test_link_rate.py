"""What a link carries, learnt from acks: open loop on computed arrivals, then both ends of a stream in virtual time."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.transport.duplex import Duplex
from shared.transport.framing import WireTensor
from shared.transport.link_rate import QUEUE_SECONDS, LinkRate
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader
from tests.support.virtual import Wire, cloud_end, edge_end, run_virtually

RATES = st.floats(6, 9).map(lambda exponent: 10**exponent)
DELAYS = st.floats(0, 0.2)
ACK = 0.002
"""Seconds that an ack waits at the receiver."""


@dataclass
class Link:
    """A link of one rate in front of which a sender always has as much under way as `window_chunks` say."""

    bits_per_second: float
    delay_seconds: float
    chunk_bytes: int
    window_chunks: int
    origin_nanoseconds: int = 0
    free_at: float = 0.0

    def __post_init__(self) -> None:
        self._acked_at: list[float] = []

    @property
    def chunk_seconds(self) -> float:
        return self.chunk_bytes * 8 / self.bits_per_second

    def acks(
        self, count: int, every: int = 1, burst_chunks: float = 0.0
    ) -> Iterator[tuple[int, int, int, float, float]]:
        """What `acknowledged` is told by the next acks, one for `every` so many chunks."""
        first = len(self._acked_at)
        written = []
        for index in range(first, first + count * every):
            before = index - self.window_chunks
            # Chunks are released by the ack that covers the one a window before them.
            released = self._acked_at[before] if before >= 0 else 0.0
            written.append(released)
            begin = released + self.delay_seconds
            self.free_at = max(self.free_at, begin - burst_chunks * self.chunk_seconds) + self.chunk_seconds
            arrived = max(self.free_at, begin)
            self._acked_at.append(arrived + self.delay_seconds + ACK)
            if (index + 1) % every == 0:
                for earlier in range(index + 1 - every, index):
                    self._acked_at[earlier] = self._acked_at[index]
                nanoseconds = self.origin_nanoseconds + round(arrived * 1e9)
                yield (index + 1) * self.chunk_bytes, nanoseconds, self.chunk_bytes, released, self._acked_at[index]

    def stand_still(self, seconds: float) -> None:
        """Carry nothing for a while; what is under way stays under way."""
        self.free_at += seconds


@st.composite
def full_links(draw) -> Link:
    """Links that a window of two bandwidth-delay products or more keeps full."""
    rate, delay = draw(RATES), draw(DELAYS)
    chunk = max(int(rate / 8 * draw(st.floats(0.001, 0.025))), 1024)
    product_chunks = (2 * delay + ACK) * rate / 8 / chunk
    window = int(draw(st.floats(2.0, 4.0)) * (product_chunks + 1)) + 3
    return Link(rate, delay, chunk, window, draw(st.integers(0, 2**62)))


def feed(rate: LinkRate, link: Link, count: int, **how: float) -> None:
    for ack in link.acks(count, **how):
        rate.acknowledged(*ack)


@given(full_links(), st.integers(1, 3))
def test_ten_acks_of_a_full_link_give_its_rate(link, every):
    assume(9 * every * link.chunk_seconds > 0.005)
    link.window_chunks *= every
    rate = LinkRate()
    feed(rate, link, 10, every=every)
    assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(full_links())
def test_the_window_holds_what_keeps_the_link_full(link):
    rate = LinkRate()
    feed(rate, link, 20)
    round_trip = 2 * link.delay_seconds + ACK + link.chunk_seconds
    assert rate.window_bytes >= 0.9 * link.bits_per_second / 8 * round_trip


@given(full_links(), st.floats(0, 4))
def test_a_token_buckets_first_burst_is_not_the_rate(link, burst):
    assume(5 * link.chunk_seconds > 0.01)
    rate = LinkRate()
    feed(rate, link, 10, burst_chunks=burst)
    assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(full_links(), st.floats(0.01, 10))
def test_a_link_that_stood_still_has_the_rate_it_had(link, seconds):
    assume(link.chunk_seconds > 0.005)
    rate = LinkRate()
    feed(rate, link, 30)
    link.stand_still(seconds)
    for ack in link.acks(30):
        rate.acknowledged(*ack)
        assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(full_links(), st.floats(0.1, 100))
def test_a_pause_of_the_sender_says_nothing(link, seconds):
    rate = LinkRate()
    feed(rate, link, 20)
    before = rate.bits_per_second
    for _ in range(20):
        rate.idle()
        link.stand_still(seconds)
        feed(rate, link, 1)
    assert rate.bits_per_second == pytest.approx(before)


def test_nothing_is_known_before_two_arrivals_are_apart():
    rate = LinkRate()
    rate.idle()
    for received in (1000, 2000, 3000):
        rate.acknowledged(received, 5, 1000, 0.0, 0.1)  # at the same nanosecond
        assert rate.bits_per_second is rate.window_bytes is None
    rate.acknowledged(4000, 5 + 10_000_000, 1000, 0.0, 0.1)
    assert rate.bits_per_second == pytest.approx(3000 * 8 / 0.01)
    assert rate.window_bytes == pytest.approx(300_000 * (0.1 + QUEUE_SECONDS), rel=0.001)


# --- both ends of a stream


@asynccontextmanager
async def busy_stream(
    up: Wire, down: Wire, tensor_bytes: int = 500_000, pause_seconds: float = 0.0, both_ways: bool = False
):
    """A stream on which the edge sends one tensor after the other, or both sides do."""
    edge, cloud = edge_end(up, down), cloud_end(up, down)

    async def send(end: Duplex) -> None:
        header, payload = TensorHeader(encoded_bytes=tensor_bytes), memoryview(bytes(tensor_bytes))
        while True:
            await end.send(WireTensor(0, Role.ROLE_FEATURE, 0, header, payload))
            await asyncio.sleep(pause_seconds)

    async def receive(end: Duplex) -> None:
        while await end.receive() is not None:
            pass

    work = [send(edge), receive(edge), receive(cloud), *([send(cloud)] if both_ways else [])]
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    yield edge, cloud
    for task in tasks:
        task.cancel()


async def goodput(wire: Wire, seconds: float) -> float:
    """Payload bits per second over the next so many."""
    before = wire.delivered_bytes
    await asyncio.sleep(seconds)
    return (wire.delivered_bytes - before) * 8 / seconds


SLOWER = st.floats(6, 8).map(lambda exponent: 10**exponent)


@settings(max_examples=25, deadline=None)
@given(SLOWER, st.floats(0, 0.1), st.sampled_from([0, 16_384, 65_536]), st.booleans())
def test_ten_acks_measure_each_direction(rate, delay, burst, both_ways):
    async def main():
        up, down = (Wire(rate, delay, burst_bytes=burst) for _ in range(2))
        async with busy_stream(up, down, both_ways=both_ways) as (edge, cloud):
            for end in (edge, cloud) if both_ways else (edge,):
                await acks(end, 10)
                assert end.link.bits_per_second == pytest.approx(rate, rel=0.1)

    run_virtually(main)


async def acks(end: Duplex, count: int) -> None:
    """Wait until so many more have come."""
    come, learn = asyncio.Semaphore(0), end.link.acknowledged

    def counted(*values: float) -> None:
        learn(*values)
        come.release()

    end.link.acknowledged = counted
    for _ in range(count):
        await come.acquire()


@settings(max_examples=15, deadline=None)
@given(SLOWER, st.floats(0, 0.1), st.sampled_from([16_384, 65_536, 1 << 20]), st.sampled_from([20_000, 500_000]))
def test_a_steady_link_is_kept_full(rate, delay, buffer, tensor):
    async def main():
        up, down = Wire(rate, delay, buffer_bytes=buffer), Wire(rate, delay)
        async with busy_stream(up, down, tensor):
            await asyncio.sleep(2.0)
            assert await goodput(up, max(2.0, 2e7 / rate)) > 0.95 * rate  # 150 chunks or more

    run_virtually(main)


@pytest.mark.parametrize("delay", [0.02, 0.05])
@pytest.mark.parametrize("rate", [50e6, 200e6])
def test_a_link_that_has_become_faster_is_filled_again(rate, delay):
    async def main():
        up, down = Wire(5e6, delay), Wire(100e6, delay)
        async with busy_stream(up, down):
            await asyncio.sleep(6.0)
            up.bits_per_second = rate
            await asyncio.sleep(4.0)
            assert await goodput(up, 4.0) > 0.9 * rate

    run_virtually(main)


@pytest.mark.parametrize("delay", [0.0005, 0.02])
def test_a_link_that_has_become_slower_is_measured_again(delay):
    async def main():
        up, down = Wire(50e6, delay), Wire(100e6, delay)
        async with busy_stream(up, down) as (edge, _):
            await asyncio.sleep(3.0)
            up.bits_per_second = 5e6
            await asyncio.sleep(3.0)
            assert edge.link.bits_per_second == pytest.approx(5e6, rel=0.1)
            assert await goodput(up, 3.0) > 0.9 * 5e6

    run_virtually(main)


def test_a_deep_buffer_does_not_fill():
    async def main():
        up, down = Wire(20e6, 0.02, buffer_bytes=1 << 24), Wire(20e6, 0.02)
        async with busy_stream(up, down):
            await asyncio.sleep(2.0)
            for _ in range(30):
                assert await goodput(up, 1.0) > 0.93 * 20e6
                # A quarter of a second for a control call, of which the round trip is 40 ms.
                assert up.queued_bytes * 8 / 20e6 < 0.2

    run_virtually(main)


def test_after_a_stall_the_link_is_full_again():
    async def main():
        up, down = Wire(20e6, 0.02), Wire(20e6, 0.02)
        async with busy_stream(up, down):
            await asyncio.sleep(3.0)
            up.stalled_until = asyncio.get_running_loop().time() + 2.0
            await asyncio.sleep(3.0)
            assert await goodput(up, 2.0) > 0.9 * 20e6

    run_virtually(main)


@pytest.mark.parametrize("tensor", [100_000, 2_000_000])
def test_pauses_between_tensors_do_not_lower_the_rate(tensor):
    async def main():
        up, down = Wire(20e6, 0.02), Wire(20e6, 0.02)
        async with busy_stream(up, down, tensor, pause_seconds=1.5) as (edge, _):
            await asyncio.sleep(3.0)
            for _ in range(20):
                await asyncio.sleep(0.5)
                assert edge.link.bits_per_second == pytest.approx(20e6, rel=0.1)

    run_virtually(main)
