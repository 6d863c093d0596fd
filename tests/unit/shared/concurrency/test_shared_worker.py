"""A thread that many share goes on whatever the process lacks."""

import threading

from shared.concurrency.shared_worker import SharedWorker


async def test_what_has_a_thread_of_its_own_is_done_on_the_shared_one_where_no_other_can_be_had(monkeypatch):
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
