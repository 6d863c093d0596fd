"""A shared thread: it keeps working when the process can start no other thread."""

import threading

from shared.concurrency.shared_worker import SharedWorker


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
