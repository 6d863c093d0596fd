"""The threads of a trainer on which sessions compute: one for their steps, one for codecs, and one that builds models.

Sessions share the first two by the time that they use. Building a model takes long and touches no open session, so it
has a thread of its own, which subjects share in the same way. Copying and restoring a session's state keeps its place
among the session's own work and delays no other session's.
"""

import sys
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cloud_trainer.sessions.shared_thread import SharedThread, ThreadLane
from shared.concurrency.threads import SWITCH_SECONDS
from shared.training.device import prepare_building_thread, prepare_compute_thread
from shared.transport.auth.callers import caller

P = ParamSpec("P")
T = TypeVar("T")

HELD_UP_SECONDS = 10.0
"""Time after which a piece of work on the compute thread may be one that never ends."""


class TrainerThreads:
    """The threads of one trainer. Used on the event loop."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._steps = SharedThread("compute", prepare_compute_thread)
        self._building = SharedThread("building", prepare_building_thread)
        self._codec = SharedThread("codec")

    def compute_lane(self, session_id: str) -> ThreadLane:
        """Return a session's lane on the compute thread: `run` for its steps, `aside` for work that delays no other session."""
        return self._steps.of(session_id)

    def codec_lane(self, session_id: str) -> ThreadLane:
        """Return a session's lane on the codec thread."""
        return self._codec.of(session_id)

    @property
    def compute_seconds(self) -> float:
        """Return the time for which the compute thread was busy so far."""
        return self._steps.busy_seconds

    @property
    def is_held_up(self) -> bool:
        """Tell whether the compute thread has been at one piece of work for longer than any should take."""
        return self._steps.present_seconds >= HELD_UP_SECONDS

    async def build(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that builds a model for the caller of this RPC, on the building thread."""
        return await self._building.of(caller().subject).run(function, *args, **kwargs)

    def close(self, seconds: float) -> bool:
        """Drop waiting work, and end the threads. Returns whether all running work ended within so many seconds."""
        threads, deadline = (self._steps, self._building, self._codec), time.monotonic() + seconds
        for thread in threads:
            thread.close()
        return all(thread.ended(max(deadline - time.monotonic(), 0.0)) for thread in threads)
