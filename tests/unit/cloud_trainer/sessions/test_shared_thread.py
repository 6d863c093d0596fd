"""A shared thread: it works on when the process can start no other, and is refused when it could not be prepared."""

import threading

import pytest

from cloud_trainer.sessions.shared_thread import SharedThread
from shared.concurrency.threads import WorkerThread


async def test_work_runs_on_the_shared_thread_if_no_thread_of_its_own_can_start(monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name.endswith("-aside"):
            raise RuntimeError("can't start new thread")
        start(thread)

    thread = SharedThread("work")
    monkeypatch.setattr(threading.Thread, "start", limited)
    try:
        lane = thread.of("one")
        assert await lane.aside(lambda: threading.current_thread().name) == "work"
        assert await thread.of("other").run(lambda: "goes on") == "goes on"
    finally:
        thread.close()
        assert thread.ended(10)


@pytest.mark.parametrize("make", [SharedThread, WorkerThread])
def test_nobody_is_left_to_wait_for_a_thread_that_could_not_be_prepared(make):
    def fails():
        raise PermissionError("not here")

    with pytest.raises(PermissionError, match="not here"):
        make("work", fails)
