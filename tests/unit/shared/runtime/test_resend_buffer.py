"""The buffer of tensors that may be sent again."""

from hypothesis import given
from hypothesis import strategies as st

from shared.runtime import ResendBuffer

steps = st.integers(0, 40)


@given(steps, st.integers(0, 20), steps, steps)
def test_tensors_that_a_peer_lacks_are_kept_until_they_are_settled(first, count, settled, position):
    buffer: ResendBuffer[str] = ResendBuffer(first)
    stop = first + count
    for step in range(first, stop):
        buffer.keep(step, str(step))
    buffer.forget_before(settled)
    lacking = range(position, stop)
    there = all(step >= max(first, settled) for step in lacking)
    assert buffer.covers(position) == (there and position <= stop)
    if buffer.covers(position):
        assert [buffer[step] for step in lacking] == list(map(str, lacking))


@given(st.integers(1, 10), st.integers(0, 30))
def test_no_more_than_the_limit_is_kept(limit, count):
    buffer: ResendBuffer[int] = ResendBuffer(limit=limit)
    for step in range(count):
        buffer.keep(step, step)
    assert buffer.steps == tuple(range(count))[-limit:]
    assert buffer.covers(max(count - limit, 0))
    assert not buffer.covers(count - limit - 1)


def test_a_position_as_far_away_as_a_number_can_be_is_judged_at_once():
    buffer: ResendBuffer[int] = ResendBuffer()
    buffer.keep(2**63, 0)
    assert not buffer.covers(0)


def test_a_request_after_the_last_tensor_is_not_covered():
    buffer: ResendBuffer[int] = ResendBuffer(3)
    assert buffer.covers(3)
    assert not buffer.covers(4)


def test_forgetting_leaves_nothing():
    buffer: ResendBuffer[int] = ResendBuffer()
    buffer.keep(4, 0)
    buffer.forget_before(5)
    assert buffer.steps == ()
    assert buffer.first_unsent() is None
    assert buffer.covers(5)


def test_what_waits_is_sent_in_order_and_again_from_where_the_peer_stands():
    buffer: ResendBuffer[str] = ResendBuffer(5)
    for step in (5, 6, 7):
        buffer.keep(step, str(step))
    assert (buffer.waiting, buffer.first_unsent()) == (3, "5")
    buffer.sent_step = 7
    assert (buffer.waiting, buffer.first_unsent()) == (1, "7")
    buffer.sent_step = 6
    assert (buffer.waiting, buffer.first_unsent()) == (2, "6")
