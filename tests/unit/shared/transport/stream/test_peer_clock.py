"""The peer's clock in terms of our own: as good as the quickest exchange, for as long as clocks stay close."""

from hypothesis import given
from hypothesis import strategies as st

from shared.transport.stream.link_estimate import DRIFT, PeerClock

OFFSETS = st.floats(-1e6, 1e6)
"""Clock differences of two machines that were started weeks apart."""
MOMENTS = st.floats(0, 1e6)
WAYS = st.tuples(st.floats(0, 2), st.floats(0, 2))
"""Seconds there and back."""
ROUNDING = 1e-6


@given(
    OFFSETS,
    st.floats(-DRIFT, DRIFT),
    st.lists(st.tuples(st.floats(0, 1e4), WAYS), min_size=1, max_size=20),
    st.floats(0, 1e4),
)
def test_the_error_is_that_of_the_best_exchange_with_what_the_clocks_came_apart_since(offset, drift, exchanges, later):
    """The error is half of its round trip, and the drift from then to now."""
    clock, now, errors = PeerClock(), 0.0, []

    def peer(moment):
        return round((moment * (1 + drift) + offset) * 1e9)

    for pause, (there, back) in exchanges:
        sent = now + pause
        now = sent + there + back
        clock.observe(sent, now, peer(sent + there))
        errors.append(((there + back) / 2, sent))
    moment = now + later
    bound = min(error + DRIFT * (moment - sent) for error, sent in errors)
    assert abs(clock.to_local(peer(moment)) - moment) <= bound + ROUNDING


@given(OFFSETS, st.floats(0, 0.01), WAYS)
def test_a_quick_exchange_is_forgotten_when_the_clocks_may_have_come_further_apart(offset, way, slow):
    clock, (there, back) = PeerClock(), slow
    clock.observe(5.0, 5.0 + 2 * way, round((5.0 + way + offset) * 1e9))
    later = 6.0 + (there + back) / 2 / DRIFT
    stepped = offset + 3.0
    clock.observe(later, later + there + back, round((later + there + stepped) * 1e9))
    assert abs(clock.to_local(round((later + stepped) * 1e9)) - later) <= (there + back) / 2 + ROUNDING


@given(OFFSETS, MOMENTS, st.floats(0, 2), MOMENTS)
def test_equal_ways_give_the_exact_offset(offset, sent, way, moment):
    clock = PeerClock()
    clock.observe(sent, sent + 2 * way, round((sent + way + offset) * 1e9))
    assert abs(clock.to_local(round((moment + offset) * 1e9)) - moment) < ROUNDING


@given(OFFSETS, st.floats(0, 0.01), WAYS)
def test_a_slow_exchange_changes_nothing_that_a_quick_one_said(offset, way, slow):
    clock = PeerClock()
    clock.observe(5.0, 5.0 + 2 * way, round((5.0 + way + offset) * 1e9))
    before = clock.to_local(10**9)
    there, back = slow
    clock.observe(6.0, 6.03 + there + back, round((6.0 + there + offset) * 1e9))
    assert clock.to_local(10**9) == before


@given(OFFSETS, MOMENTS, MOMENTS)
def test_moments_keep_their_distance(offset, one, other):
    clock = PeerClock()
    clock.observe(1.0, 1.5, round((1.2 + offset) * 1e9))
    apart = clock.to_local(round(one * 1e9)) - clock.to_local(round(other * 1e9))
    assert abs(apart - (one - other)) < ROUNDING


def test_on_one_machine_nothing_has_to_be_observed():
    assert PeerClock().to_local(7_500_000_000) == 7.5
