"""An agent's stored sessions: open in one process at a time, and a reader disturbs no process."""

import threading

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.session_record import SessionRecord, recorded
from edge_agent.sessions.stored_session import StoredSession, stored_sessions
from shared.checkpoint import CheckpointName, LocalFiles
from tests.support.commands import MLP
from tests.support.running import edge_config

SESSION = "0123456789abcdef" * 2


@pytest.fixture
def stored(tmp_path):
    folder = LocalFiles(tmp_path)
    begun = StoredSession(SessionRecord.begun_now(SESSION, Experiment(edge_config(*MLP))), folder.folder(SESSION), 1)
    begun.begin()
    begun.release()
    return folder


def is_open(folder):
    return [locked for _, _, locked in stored_sessions(folder)]


def test_a_session_is_open_in_one_process_at_a_time_and_the_list_says_so(stored):
    assert is_open(stored) == [False]
    one = StoredSession.reopen(stored, SESSION, 1)
    assert one is not None
    assert is_open(stored) == [True]
    assert StoredSession.reopen(stored, SESSION, 1) is None
    one.release()
    assert is_open(stored) == [False]
    again = StoredSession.reopen(stored, SESSION, 1)
    assert again is not None
    again.release()


def test_a_session_that_begins_again_is_open_all_the_time_and_keeps_nothing_of_the_lost_one(stored):
    lost = StoredSession.reopen(stored, SESSION, 2)
    assert lost is not None
    lost.store.save(CheckpointName(0, 5), {}, b"weights")
    lost.store.save_replica(CheckpointName(0, 3), 1, b"block")
    lost.keep_best(4, b"best", {}.get)
    assert lost.next_term() == 1
    lost.empty()
    assert is_open(stored) == [True]
    assert stored.folder(SESSION).folders() == []
    assert sorted(stored.folder(SESSION).names()) == ["lock", "session.json"]
    following = StoredSession(lost.record, stored.folder(SESSION), 2)
    following.begin(lost)
    lost.release()
    assert is_open(stored) == [True]
    assert following.checkpoints() == []
    assert following.next_term() == 1
    following.release()
    assert is_open(stored) == [False]


def test_listing_sessions_does_not_keep_a_process_from_resuming_one(stored):
    done = threading.Event()

    def look():
        while not done.is_set():
            is_open(stored)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            resumed = StoredSession.reopen(stored, SESSION, 1)
            assert resumed is not None, "an agent that resumes would begin again from nothing"
            resumed.release()
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_the_authorities_of_the_system_stay_the_systems_in_a_record():
    config = edge_config(*MLP, "trainer.address=gpu.example.org:50051", "tls.ca=system")
    assert recorded(config)["tls"]["ca"] == "system"
