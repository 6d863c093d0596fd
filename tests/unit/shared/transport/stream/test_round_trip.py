"""The round trip of a link, measured by acks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.transport.stream.link_estimate import MEMORY_SECONDS, LinkEstimate, RoundTrip
from tests.support.virtual import Wire, run_virtually
from tests.unit.shared.transport.stream.test_duplex import DEEP, busy_stream

ACK_SECONDS = 0.003
"""Seconds that an ack waits for a message that carries it, and takes on the link itself."""


def test_nothing_is_known_before_the_first_ack():
    assert RoundTrip().seconds is None


def test_the_shortest_of_the_last_seconds_counts():
    way = RoundTrip()
    way.observe(0.070, 200, None, 0.0)
    way.observe(0.042, 200, 8e5, 1.0)
    way.observe(0.055, 200, 8e5, 2.0)
    assert way.seconds == 0.042


@pytest.mark.parametrize(("chunk_bytes", "bits_per_second"), [(10_000, 8e5), (100_000, None)])
def test_a_chunk_that_may_be_long_on_the_link_says_nothing(chunk_bytes, bits_per_second):
    way = RoundTrip()
    way.observe(0.100, chunk_bytes, bits_per_second, 0.0)
    assert way.seconds is None


def test_a_way_that_became_longer_is_known_when_the_old_acks_are_forgotten():
    way = RoundTrip()
    way.observe(0.010, 200, None, 0.0)
    for second in range(1, 30):
        way.observe(0.080, 200, None, float(second))
        assert way.seconds == (0.010 if second <= MEMORY_SECONDS else 0.080)
    way.observe(0.020, 200, None, 30.0)
    assert way.seconds == 0.020


@pytest.mark.parametrize("rate", [1e6, 2e7, 3e8])
@pytest.mark.parametrize("round_trip", [0.0, 0.04, 0.2])
def test_a_stream_that_waits_between_tensors_knows_the_round_trip_of_its_link(rate, round_trip):
    async def main():
        up, down = (Wire(rate, round_trip / 2, buffer_bytes=DEEP) for _ in range(2))
        pause_seconds = 0.1 + 2 * 100_000 * 8 / rate
        async with busy_stream(up, down, 100_000, pause_seconds=pause_seconds) as (edge, _):
            await asyncio.sleep(10 * pause_seconds)
            assert round_trip - 0.001 <= edge.estimate.round_trip.seconds <= round_trip + ACK_SECONDS + 256 * 8 / rate

    run_virtually(main)


@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.floats(0, 0.05), st.floats(0, 0.05), st.integers(1, 100_000)),
        min_size=2,
        max_size=30,
    )
)
def test_a_write_that_is_noted_too_late_makes_no_round_trip_shorter_than_none(acks):
    """Under load a sender may read its clock when the chunk has arrived already; then its delay looks shorter than it is."""
    link, sent, received = LinkEstimate(), 0.0, 0
    for pause, way, late, count in acks:
        sent += pause + 1e-6
        received += count
        arrived = sent + way
        link.acknowledged(received, int(arrived * 1e9), min(sent + late, arrived + way), arrived + way, count)
        assert link.round_trip.seconds is None or link.round_trip.seconds >= 0.0
        sent = arrived + way
