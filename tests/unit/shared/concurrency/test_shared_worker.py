"""A shared thread: it works on when the process can start no other, and is refused when it could not be prepared."""

import threading

import pytest

from shared.concurrency.shared_worker import SharedWorker
from shared.concurrency.threads import WorkerThread


async def test_work_runs_on_the_shared_thread_if_no_thread_of_its_own_can_start(monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name.endswith("-aside"):
            raise RuntimeError("can't start new thread")
        start(thread)

    worker = SharedWorker("work")
    monkeypatch.setattr(threading.Thread, "start", limited)
    try:
        lane = worker.of("one")
        assert await lane.aside(lambda: threading.current_thread().name) == "work"
        assert await worker.of("other").run(lambda: "goes on") == "goes on"
    finally:
        worker.close()
        assert worker.ended(10)


@pytest.mark.parametrize("make", [SharedWorker, WorkerThread])
def test_nobody_is_left_to_wait_for_a_thread_that_could_not_be_prepared(make):
    def fails():
        raise PermissionError("not here")

    with pytest.raises(PermissionError, match="not here"):
        make("work", fails)
