"""Where the trainer computes: steps of all sessions on one thread, shared by the time they use, and the rest beside it.

Building a model takes long and touches no session that is there, so it has a thread of its own, which subjects share in
the same way. Copying and restoring a session's state keeps its place among the session's own work and holds up nobody
else's.
"""

import sys
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shared.concurrency.shared_worker import Lane, SharedWorker
from shared.training.device import prepare_compute_thread
from shared.transport.auth.callers import caller

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH_SECONDS = 0.0005
"""How long one thread may hold Python's interpreter while another waits for it. A step asks for it at each of its
operations, so with the default of 5 ms a model that is being built would make a step of 5 ms take ten times as long."""


class Compute:
    """The threads that compute."""

    def __init__(self) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._steps = SharedWorker("compute", prepare_compute_thread)
        self._building = SharedWorker("building", prepare_compute_thread)
        self._codec = SharedWorker("codec")

    def of(self, session_id: str) -> Lane:
        """What computes for a session: `run` for its steps, `aside` for what others do not wait for."""
        return self._steps.of(session_id)

    def codec_of(self, session_id: str) -> Lane:
        """What encodes and decodes for a session."""
        return self._codec.of(session_id)

    async def build(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what builds a model for the caller, beside all steps."""
        return await self._building.of(caller().subject).run(function, *args, **kwargs)

    def close(self, seconds: float) -> bool:
        """Drop what waits, and end the threads; whether all that was running ended within so many seconds."""
        workers, deadline = (self._steps, self._building, self._codec), time.monotonic() + seconds
        for worker in workers:
            worker.close()
        return all(worker.ended(max(deadline - time.monotonic(), 0.0)) for worker in workers)
