"""The open sessions: each belongs to its owner alone, and their number is bounded in total and for each owner."""

from types import SimpleNamespace

import grpc
import pytest

from cloud_trainer.sessions.session_registry import SessionRegistry
from shared.transport.auth.callers import ANYONE, Caller, set_caller
from shared.transport.rpc.status import StatusError


class Built:
    """The part of a session that the registry reads."""

    def __init__(self, session_id):
        self.id = self.run_id = session_id
        self.attachment = SimpleNamespace(begun=True, lost_at=None)


@pytest.fixture
def calls_as():
    yield lambda subject: set_caller(Caller(subject))
    set_caller(ANYONE)


def sessions_of(limit, limit_per_subject=None):
    return SessionRegistry(limit, 60.0, 60.0, lambda _expired: None, limit_per_subject)


async def test_a_session_is_there_for_its_owner_alone(calls_as):
    sessions = sessions_of(3)
    calls_as("a")
    session = Built(sessions.reserve())
    sessions.add(session)
    with sessions.using(session.id) as found:
        assert found is session
    calls_as("b")
    with pytest.raises(StatusError) as asked, sessions.using(session.id):
        pass
    with pytest.raises(StatusError) as closed:
        sessions.check_owner(session.id)
    with pytest.raises(StatusError) as nobodys, sessions.using("never-was"):
        pass
    for theirs in (asked, closed):
        assert theirs.value.code is grpc.StatusCode.NOT_FOUND
        said = str(theirs.value).replace(session.id, "never-was")
        assert said == str(nobodys.value), "nothing tells an id that is another's from one that never was"
    sessions.check_owner("never-was")
    sessions.remove(session)


async def test_a_session_of_an_earlier_life_does_not_take_the_place_of_the_one_that_has_its_id_now():
    sessions = sessions_of(3)
    earlier = Built(sessions.reserve())
    sessions.add(earlier)
    sessions.remove(earlier)
    sessions.reserve(earlier.id)
    sessions.remove(earlier)
    assert earlier.id in sessions, "the place is another's, which is being built"
    later = Built(earlier.id)
    sessions.add(later)
    for _ in range(2):
        sessions.remove(earlier)
        sessions.release(earlier.id)
        assert sessions.find(later.id) is later
    sessions.remove(later)
    assert later.id not in sessions


def test_places_are_bounded_for_all_and_for_each(calls_as):
    sessions = sessions_of(3, 2)
    calls_as("a")
    sessions.reserve()
    own = sessions.reserve()
    with pytest.raises(StatusError, match="2 sessions of 'a' are open") as refused:
        sessions.reserve()
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_seconds > 0
    calls_as("b")
    sessions.reserve()
    with pytest.raises(StatusError, match="3 sessions are open"):
        sessions.reserve()
    sessions.release(own)
    sessions.reserve()
