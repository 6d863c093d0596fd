"""Waits between attempts: random below a ceiling that grows, and short enough to notice soon that the link is back."""

import random

from hypothesis import given
from hypothesis import strategies as st

from shared.client.backoff import AWAY_SHARE, Backoff
from shared.client.retry import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, SOON_WAIT_SECONDS
from shared.transport.rpc.options import channel_options

GRPC_JITTER = 0.2
"""Jitter of gRPC: it waits up to a fifth longer than it is told (its doc/connection-backoff.md)."""
LINK_BACK_SECONDS = 1.0
"""Longest time from a link's return after a short absence to the first new step, in seconds. This is the goal."""


def with_highest_draws(first, soon, longest):
    """Return waits that are always drawn as long as possible, and the ceilings that they were drawn from."""
    drawn = []

    def uniform(low, high):
        drawn.append((low, high))
        return high

    return Backoff(first, soon, longest, uniform), drawn


@given(first=st.floats(0.001, 10.0), soon=st.floats(0.001, 100.0), attempts=st.integers(1, 200))
def test_the_ceiling_of_a_short_absence_doubles_and_the_whole_wait_is_drawn(first, soon, attempts):
    backoff, drawn = with_highest_draws(first, soon, 1000.0)
    waits = [backoff.next_seconds(0.0) for _ in range(attempts)]
    assert drawn == [(0.0, wait) for wait in waits]
    assert waits == [min(soon, first * 2.0**attempt) for attempt in range(min(attempts, 64))] + waits[64:]
    assert all(wait <= soon for wait in waits)


@given(away=st.floats(0.0, 1e7), attempts=st.integers(0, 100))
def test_the_ceiling_of_a_long_absence_grows_with_it_up_to_the_longest(away, attempts):
    backoff, _ = with_highest_draws(FIRST_WAIT_SECONDS, SOON_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    for _ in range(attempts):
        backoff.next_seconds(0.0)
    wait = backoff.next_seconds(away)
    assert wait <= LONGEST_WAIT_SECONDS
    assert wait <= max(SOON_WAIT_SECONDS, AWAY_SHARE * away)
    assert wait >= min(LONGEST_WAIT_SECONDS, AWAY_SHARE * away)


@given(seconds=st.floats(1.0, 1e4), away=st.floats(0.0, 10.0))
def test_all_waits_together_leave_room_in_the_goal(seconds, away):
    options = dict(channel_options(1 << 20, keepalive_seconds=seconds))
    grpc_seconds = options["grpc.max_reconnect_backoff_ms"] / 1e3 * (1 + GRPC_JITTER)
    backoff, _ = with_highest_draws(FIRST_WAIT_SECONDS, SOON_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    assert all(grpc_seconds + backoff.next_seconds(away) < LINK_BACK_SECONDS for _ in range(100))
    assert options["grpc.initial_reconnect_backoff_ms"] <= options["grpc.max_reconnect_backoff_ms"]


def test_a_wait_draws_nothing_from_the_generator_that_a_data_set_may_draw_from():
    before = random.getstate()
    Backoff(1.0, 2.0, 3.0).next_seconds(0.0)
    assert random.getstate() == before
