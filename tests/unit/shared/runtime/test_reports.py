"""Reports on their way to a peer: each is sent once on a stream, and again on the next from where the peer stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runtime import reports
from shared.runtime.reports import MOST_TAKEN, Reports
from shared.wire.isthmus.v1.link_pb2 import StepDone


def queue(count: int, *, follows: bool = False) -> Reports:
    """Return a queue of so many reports."""
    found = Reports(may_wait=False, follows=follows)
    for step in range(count):
        found.add(StepDone(worker="edge", step=step), more_comes=False)
    return found


def taken(found: Reports) -> list[int]:
    """Take all reports, message by message."""
    steps: list[int] = []
    while found.are_due:
        message = found.take()
        assert 0 < len(message.dones) <= MOST_TAKEN
        steps += [done.step for done in message.dones]
    return steps


@given(count=st.integers(0, 50), received=st.integers(0, 50))
def test_a_new_stream_brings_what_the_peer_lacks(count, received):
    found = queue(count)
    assert taken(found) == list(range(count))
    assert found.covers(received) == (received <= count)
    if found.covers(received):
        found.resume(received)
        assert taken(found) == list(range(received, count))
        assert not found.covers(received - 1), "the peer has it"


@pytest.mark.parametrize(("lacking", "is_covered"), [(4, True), (5, False)])
def test_no_more_than_the_limit_is_kept(monkeypatch, lacking, is_covered):
    monkeypatch.setattr(reports, "MOST_KEPT", 4)
    assert queue(9).covers(9 - lacking) == is_covered


def test_a_peer_that_has_lost_all_hears_the_reports_from_here_on():
    found = queue(3)
    assert not found.covers(3, is_new=True)
    assert found.covers(0, is_new=True)
    found.resume(0, is_new=True)
    found.add(StepDone(worker="edge", step=3), more_comes=False)
    assert taken(found) == [3]
    assert found.covers(1)


@given(received=st.integers(0, 1 << 40))
def test_a_new_life_follows_on_the_count_of_the_one_before(received):
    found = queue(2, follows=True)
    assert found.covers(received)
    found.resume(received)
    assert taken(found) == [0, 1]
    assert found.covers(received + 2)
    assert not found.covers(received + 3)
