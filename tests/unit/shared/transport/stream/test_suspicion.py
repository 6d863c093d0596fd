"""The causes that make a sender measure its link again, and those that do not."""

from hypothesis import given
from hypothesis import strategies as st

from shared.transport.stream.link_estimate import IN_A_ROW, LATE_SECONDS, LATE_TIMES, USUAL, Suspicion

CARRIED = st.floats(0.0001, 0.1)


def after(acks, carried):
    suspicion = Suspicion()
    for seconds in acks:
        suspicion.note(seconds, carried)
    return suspicion


@given(CARRIED, st.floats(0, 1.0), st.lists(st.floats(0.6, 1.2), min_size=1, max_size=50))
def test_a_peer_that_is_always_late_raises_none(carried, late, shares):
    assert not after([carried + late * share for share in shares], carried).is_raised


@given(CARRIED, st.floats(0, 0.2), st.floats(1.01, 5))
def test_acks_that_take_much_longer_than_usual_raise_one(carried, usual, more):
    longer = LATE_SECONDS + more * LATE_TIMES * (usual + carried)
    suspicion = after([carried + usual] * USUAL, carried)
    for _ in range(IN_A_ROW):
        assert not suspicion.is_raised
        suspicion.note(longer, carried)
    assert suspicion.is_raised
    suspicion.note(carried + usual, carried)
    assert not suspicion.is_raised


@given(CARRIED, st.floats(0.05, 0.2))
def test_old_delays_do_not_count(carried, late):
    suspicion = after([carried + late] * USUAL + [carried] * USUAL, carried)
    for _ in range(IN_A_ROW):
        suspicion.note(LATE_SECONDS + 1.01 * LATE_TIMES * (late + carried), carried)
    assert suspicion.is_raised
