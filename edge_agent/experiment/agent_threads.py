"""The threads of one agent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.concurrency.threads import Worker
from shared.training.device import prepare_compute_thread


@dataclass(frozen=True, slots=True)
class AgentThreads:
    """The threads of one agent, one a kind of work."""

    compute: Worker
    codec: Worker
    load: Worker
    disk: Worker

    @classmethod
    @contextmanager
    def started(cls) -> Iterator["AgentThreads"]:
        """A thread each, ended at exit."""
        threads = cls(Worker("compute", prepare_compute_thread), Worker("codec"), Worker("load"), Worker("disk"))
        try:
            yield threads
        finally:
            for worker in (threads.compute, threads.codec, threads.load, threads.disk):
                worker.close()
