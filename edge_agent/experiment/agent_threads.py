"""The threads of one agent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.concurrency.threads import WorkerThread
from shared.training.device import prepare_compute_thread


@dataclass(frozen=True, slots=True)
class AgentThreads:
    """The threads of one agent, one a kind of work."""

    compute: WorkerThread
    codec: WorkerThread
    reading: WorkerThread
    disk: WorkerThread

    @classmethod
    @contextmanager
    def started(cls) -> Iterator["AgentThreads"]:
        """A thread each, ended at exit."""
        threads = cls(
            WorkerThread("compute", prepare_compute_thread),
            WorkerThread("codec"),
            WorkerThread("reading"),
            WorkerThread("disk"),
        )
        try:
            yield threads
        finally:
            for worker in (threads.compute, threads.codec, threads.reading, threads.disk):
                worker.close()
