"""The rate of a link, from one exchange."""

import pytest

from shared.client.link_measurement import bits_per_second


def test_a_rate_leaves_the_round_trip_out_but_never_more_than_half_of_the_time():
    assert bits_per_second(1_000_000, 1.1, 0.1) == pytest.approx(8e6)
    assert bits_per_second(1_000_000, 0.1, 0.1) == pytest.approx(160e6)
