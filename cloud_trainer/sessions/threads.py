"""The threads of a trainer on which sessions compute: one for their steps, one for codecs, and one that builds models.

Sessions share the first two by the time that they use. Building a model takes long and touches no open session, so it
has a thread of its own, which subjects share in the same way. Copying and restoring a session's state keeps its place
among the session's own work and delays no other session's.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cloud_trainer.sessions.shared_thread import SharedThread, ThreadLane
from shared.concurrency.threads import SWITCH_SECONDS
from shared.training.device import prepare_building_thread, prepare_compute_thread
from shared.transport.auth.callers import caller

P = ParamSpec("P")
T = TypeVar("T")

WINDOW_SECONDS = 10.0
"""Seconds that a share is of, about: as many as agents let pass between two probes."""
HELD_UP_SECONDS = 10.0
"""Time after which a piece of work on the compute thread may be one that never ends."""


class BusyShare:
    """The share of the last seconds in which a thread was busy. Used on the event loop."""

    def __init__(self, busy_seconds: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """busy_seconds: returns the time for which the thread was busy so far."""
        self._busy_seconds = busy_seconds
        self._clock = clock
        self._looks = deque([(clock(), busy_seconds())])
        """Earlier looks at the clock and at the thread, a second apart at least."""

    def of_last_seconds(self) -> float:
        """Return the share since the newest look of `WINDOW_SECONDS` ago or longer, or since the first."""
        now, busy = self._clock(), self._busy_seconds()
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        since, before = self._looks[0]
        if now - self._looks[-1][0] >= 1.0:
            self._looks.append((now, busy))
        return min(1.0, max(0.0, (busy - before) / (now - since))) if now > since else 0.0


class TrainerThreads:
    """The threads of one trainer. Used on the event loop."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._steps = SharedThread("compute", prepare_compute_thread)
        self._building = SharedThread("building", prepare_building_thread)
        self._codec = SharedThread("codec")
        self.busy_share = BusyShare(lambda: self._steps.busy_seconds)
        """Share of time in which the compute thread was busy."""

    def compute_lane(self, session_id: str) -> ThreadLane:
        """Return a session's lane on the compute thread: `run` for its steps, `aside` for work that delays no other session."""
        return self._steps.of(session_id)

    def codec_lane(self, session_id: str) -> ThreadLane:
        """Return a session's lane on the codec thread."""
        return self._codec.of(session_id)

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
