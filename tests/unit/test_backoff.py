"""Waits between attempts: jittered below a ceiling that doubles, and short enough that a link that is back is soon noticed."""

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.endurance import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from shared.backoff import Backoff
from shared.transport.options import channel_options

GRPC_JITTER = 0.2
"""gRPC's waits are up to a fifth longer than it is told (its doc/connection-backoff.md)."""
LINK_BACK_SECONDS = 1.0
"""The goal: from a link that is back to the first new step."""


@given(first=st.floats(0.001, 10.0), longest=st.floats(0.001, 100.0), attempts=st.integers(1, 200))
def test_the_ceiling_doubles_up_to_the_longest_and_the_whole_wait_is_drawn(first, longest, attempts):
    drawn = []

    def uniform(low, high):
        drawn.append((low, high))
        return high

    backoff = Backoff(first, longest, uniform)
    waits = [backoff.next_seconds() for _ in range(attempts)]
    assert drawn == [(0.0, wait) for wait in waits]
    assert waits == [min(longest, first * 2.0**attempt) for attempt in range(min(attempts, 64))] + waits[64:]
    assert all(wait <= longest for wait in waits)


@given(seconds=st.floats(1.0, 1e4))
def test_all_waits_together_leave_room_in_the_goal(seconds):
    options = dict(channel_options(1 << 20, keepalive_seconds=seconds))
    grpc_seconds = options["grpc.max_reconnect_backoff_ms"] / 1e3 * (1 + GRPC_JITTER)
    assert grpc_seconds + max(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS) < LINK_BACK_SECONDS
    assert options["grpc.initial_reconnect_backoff_ms"] <= options["grpc.max_reconnect_backoff_ms"]
