"""What an agent keeps of its sessions: open in one process at a time, and looking at it disturbs nobody."""

import threading

import pytest

from edge_agent.experiment.building import Experiment
from edge_agent.training.session_store import KeptSession, SessionRecord, kept_sessions
from shared.checkpoint import LocalFiles
from tests.support.commands import MLP
from tests.support.running import edge_config

SESSION = "0123456789abcdef" * 2


@pytest.fixture
def kept(tmp_path):
    folder = LocalFiles(tmp_path)
    KeptSession.begin(SessionRecord.begun_now(SESSION, Experiment(edge_config(*MLP))), folder, 1).release()
    return folder


def is_open(folder):
    return [locked for _, _, locked in kept_sessions(folder)]


def test_a_session_is_open_in_one_process_at_a_time_and_the_list_says_so(kept):
    assert is_open(kept) == [False]
    one = KeptSession.reopen(kept, SESSION, 1)
    assert one is not None
    assert is_open(kept) == [True]
    assert KeptSession.reopen(kept, SESSION, 1) is None
    one.release()
    assert is_open(kept) == [False]
    again = KeptSession.reopen(kept, SESSION, 1)
    assert again is not None
    again.release()


def test_whoever_lists_sessions_keeps_nobody_from_resuming_one(kept):
    done = threading.Event()

    def look():
        while not done.is_set():
            is_open(kept)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            resumed = KeptSession.reopen(kept, SESSION, 1)
            assert resumed is not None, "an agent that resumes would begin again from nothing"
            resumed.release()
    finally:
        done.set()
        for looker in lookers:
            looker.join()
