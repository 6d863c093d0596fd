"""The rate of a link, learnt from acks, on arrivals computed for a link of one rate."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.transport.stream.link_rate import BASE_SECONDS, LEAST_GAP_BYTES, LinkRate

RATES = st.floats(6, 10).map(lambda exponent: 10**exponent)
DELAYS = st.floats(0.0001, 0.1)
ACK_DELAY = 0.002
"""Seconds that an ack may wait at the receiver."""

Ack = tuple[int, int, float, float]
"""Arguments of `acknowledged`."""


@dataclass
class Link:
    """A link of one rate. Its sender always keeps `window_chunks` under way."""

    bits_per_second: float
    delay_seconds: float
    chunk_bytes: int
    window_chunks: int
    origin_nanoseconds: int = 0
    back_seconds: float = 0.0
    free_at: float = 0.0
    _acked_at: list[float] = field(default_factory=list)

    @property
    def chunk_seconds(self) -> float:
        return self.chunk_bytes * 8 / self.bits_per_second

    def acks(self, count: int, every: int = 1, burst_chunks: float = 0.0) -> Iterator[Ack]:
        """Yield the next acks, one for `every` so many chunks."""
        first = len(self._acked_at)
        for index in range(first, first + count * every):
            before = index - self.window_chunks
            # The ack of the chunk a window earlier releases a chunk.
            written = self._acked_at[before] if before >= 0 else 0.0
            begin = written + self.delay_seconds
            self.free_at = max(self.free_at, begin - burst_chunks * self.chunk_seconds) + self.chunk_seconds
            arrived = max(self.free_at, begin)
            self._acked_at.append(arrived + self.delay_seconds + self.back_seconds)
            if (index + 1) % every == 0:
                for earlier in range(index + 1 - every, index):
                    self._acked_at[earlier] = self._acked_at[index]
                nanoseconds = self.origin_nanoseconds + round(arrived * 1e9)
                yield (index + 1) * self.chunk_bytes, nanoseconds, written, self._acked_at[index]

    def stand_still(self, seconds: float) -> None:
        """Carry nothing for a while. Bytes under way stay under way."""
        self.free_at += seconds


@st.composite
def full_links(draw: st.DrawFn) -> Link:
    """Draw links that are kept full, by chunks of 5 to 50 ms or of 64 KiB or more, and whose acks may be slow."""
    rate, delay, back = draw(RATES), draw(DELAYS), draw(st.floats(0, 0.1))
    chunk = max(int(rate / 8 * draw(st.floats(0.005, 0.05))), 64 * 1024)
    loop_chunks = (2 * delay + back) * rate / 8 / chunk
    window = int(loop_chunks * draw(st.floats(1.0, 4.0))) + 4
    return Link(rate, delay, chunk, window, draw(st.integers(0, 2**62)), back)


def feed(rate: LinkRate, acks: Iterator[Ack]) -> None:
    for ack in acks:
        rate.acknowledged(*ack)


@given(full_links(), st.integers(1, 3))
def test_ten_acks_of_a_full_link_give_its_rate(link: Link, every: int):
    link.window_chunks *= every
    rate = LinkRate()
    feed(rate, link.acks(10, every))
    assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(RATES, DELAYS)
def test_chunks_of_64_kib_that_all_wait_are_enough_at_any_rate(bits_per_second: float, delay: float):
    rate = LinkRate()
    feed(rate, Link(bits_per_second, delay, 64 * 1024, 100).acks(10))
    assert rate.bits_per_second == pytest.approx(bits_per_second, rel=0.1)


@given(full_links())
def test_an_ack_takes_as_long_as_the_way_without_the_queue(link: Link):
    rate = LinkRate()
    feed(rate, link.acks(20))
    way = 2 * link.delay_seconds + link.back_seconds
    assert way <= rate.loop_seconds <= 1.001 * (way + link.chunk_seconds)


@given(full_links(), st.floats(0, 2))
def test_a_token_buckets_first_burst_is_not_the_rate(link: Link, burst: float):
    rate = LinkRate()
    feed(rate, link.acks(10, burst_chunks=burst))
    assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(full_links(), st.floats(0.01, 10))
def test_a_link_that_stood_still_has_the_rate_it_had(link: Link, seconds: float):
    rate = LinkRate()
    feed(rate, link.acks(40))
    link.stand_still(seconds)
    for ack in link.acks(40):
        rate.acknowledged(*ack)
        assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.1)


@given(full_links(), st.floats(0.1, 10))
def test_a_link_of_another_rate_is_known_after_a_few_chunks(link: Link, factor: float):
    rate = LinkRate()
    feed(rate, link.acks(40))
    link.bits_per_second *= factor
    link.chunk_bytes = max(link.chunk_bytes, int(link.bits_per_second / 8 * 0.005))
    fresh = Link(link.bits_per_second, link.delay_seconds, link.chunk_bytes, link.window_chunks)
    first = 40 * link.chunk_bytes, link.origin_nanoseconds + round(link.free_at * 1e9), link.free_at
    rate.idle()
    for received, nanoseconds, written, acked in fresh.acks(16):
        rate.acknowledged(first[0] + received, first[1] + nanoseconds, first[2] + written, first[2] + acked)
    assert rate.bits_per_second == pytest.approx(link.bits_per_second, rel=0.25)


@given(RATES, DELAYS, st.floats(1.2, 100), st.integers(1, 40))
def test_a_sender_slower_than_the_link_says_nothing_of_it(bits_per_second, delay, slower, count):
    rate, chunk = LinkRate(), 1 << 20
    seconds = chunk * 8 / bits_per_second
    for index in range(count):
        written = index * seconds * slower
        arrived = written + delay + seconds
        rate.acknowledged((index + 1) * chunk, round(arrived * 1e9), written, arrived + delay)
    assert rate.bits_per_second is None


@given(full_links(), st.floats(0.1, 100))
def test_a_pause_of_the_sender_says_nothing(link: Link, seconds: float):
    rate = LinkRate()
    feed(rate, link.acks(20))
    before = rate.bits_per_second
    for _ in range(20):
        rate.idle()
        link.stand_still(seconds)
        feed(rate, link.acks(1))
    assert rate.bits_per_second == before


@given(st.lists(st.floats(0.001, 5), min_size=10, max_size=50), st.integers(1, LEAST_GAP_BYTES - 1))
def test_small_tensors_that_a_busy_receiver_looks_at_late_say_nothing(late_seconds: list[float], size: int):
    """Such a rate would be a few hundred bits per second, and no limit of a large tensor could bear it."""
    rate, now = LinkRate(), 0.0
    for index, late in enumerate(late_seconds):
        rate.acknowledged((index + 1) * size, round((now + late) * 1e9), now, now + late)
        now += late / 2
    assert rate.bits_per_second is None


def test_nothing_is_known_before_two_arrivals_are_apart():
    rate = LinkRate()
    rate.idle()
    assert rate.loop_seconds == 0.0
    for index in range(3):
        rate.acknowledged((index + 1) << 20, 5, 0.0, 0.1)  # at the same nanosecond
        assert rate.bits_per_second is None
    rate.acknowledged(4 << 20, 5 + 10_000_000, 0.0, 0.11)
    assert rate.bits_per_second == pytest.approx(3 * 2**20 * 8 / 0.01)
    assert rate.queue_seconds == pytest.approx(0.01)
    assert rate.loop_seconds == pytest.approx(0.1)


def test_the_queue_has_to_drain_when_the_delay_without_it_was_not_seen_for_long():
    rate = LinkRate()
    link = Link(20e6, 0.02, 50_000, 6)
    drained_after = None
    for received, nanoseconds, written, acked in link.acks(1000):
        rate.acknowledged(received, nanoseconds, written, acked)
        if rate.draining:
            drained_after = acked
            break
        assert acked < 2 * BASE_SECONDS
    assert drained_after is not None
    assert drained_after > BASE_SECONDS
    now = drained_after + 1.0  # Later writes meet no queue, on a path that has become longer.
    rate.acknowledged(received + 100, round((now + 0.05) * 1e9), now, now + 0.09)
    assert not rate.draining
    assert rate.queue_seconds == 0.0
