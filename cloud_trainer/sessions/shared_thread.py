"""A thread that many share by the time they use, and what each of them asks it through."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from cloud_trainer.sessions.fair_queue import FairQueue
from shared.concurrency.call import ThreadCall
from shared.concurrency.threads import start_thread

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Job:
    call: ThreadCall[Any]
    aside: bool


class SharedThread:
    """Runs the calls of many accounts on one thread, in the order that `FairQueue` finds fair.

    The calls of one account run one after the other, in the order of asking. A call that is made aside keeps that order
    too, but runs on a thread of its own, so that other accounts need not wait for it.
    """

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        """prepare: called on every thread before anything else. Raises what it raises on the first thread."""
        self._name = name
        self._prepare = prepare
        self._queue: FairQueue[_Job] = FairQueue()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._busy_seconds = 0.0
        self._busy_since: float | None = None
        """Time at which the running call on the shared thread began, by time.monotonic."""
        start_thread(name, prepare, self._serve)

    def of(self, account: str) -> "ThreadLane":
        """Return the lane through which an account uses the thread."""
        return ThreadLane(self, account)

    async def call(self, account: str, function: Callable[[], T], *, aside: bool) -> T:
        """Call `function` when it is the account's turn, and wait for its result.

        A call that has not begun when the caller goes away never begins.
        """
        call = ThreadCall(function)
        job = _Job(call, aside)
        with self._changed:
            if self._closed:
                call.drop()
            else:
                self._queue.put(account, job, time.monotonic())
                self._changed.notify_all()
        try:
            return await call.done
        except asyncio.CancelledError:
            with self._changed:
                self._queue.drop(account, job)
            raise

    def is_wanted(self, account: str) -> bool:
        """Tell whether another account uses the thread, or a call of this one waits."""
        with self._changed:
            return self._queue.is_wanted(account)

    @property
    def busy_seconds(self) -> float:
        """Return the time for which the shared thread has run calls so far, its present one included."""
        with self._changed:
            return self._busy_seconds + (0.0 if self._busy_since is None else time.monotonic() - self._busy_since)

    @property
    def present_seconds(self) -> float:
        """Return for how long the shared thread has been at its present call; 0 without one."""
        with self._changed:
            return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def close(self) -> None:
        """Drop the calls that wait, and end the threads once the running calls end."""
        with self._changed:
            self._closed = True
            for job in self._queue.clear():
                job.call.drop()
            self._changed.notify_all()

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` and tell whether the running calls of a closed thread have ended; others run until the
        process ends."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running == 0, seconds)

    def _start_aside(self, run: Callable[[], None]) -> bool:
        """Start a thread for the work and tell whether there was one: a process may have as many as it is allowed."""
        try:
            start_thread(f"{self._name}-aside", self._prepare, run)
        except RuntimeError:
            return False
        return True

    def _serve(self) -> None:
        while (taken := self._next()) is not None:
            account, job = taken
            run = partial(self._run, account, job)
            if not (job.aside and self._start_aside(run)):
                self._run_here(run)
            del taken, job, run  # otherwise its objects would stay until the next call

    def _run_here(self, run: Callable[[], None]) -> None:
        with self._changed:
            self._busy_since = began = time.monotonic()
        run()
        with self._changed:
            self._busy_seconds += time.monotonic() - began
            self._busy_since = None

    def _next(self) -> tuple[str, _Job] | None:
        """The next job; None when the thread is closed."""
        with self._changed:
            while not self._closed:
                taken = self._queue.take(time.monotonic())
                if taken is None:
                    self._changed.wait()
                elif isinstance(taken, tuple):
                    self._running += 1
                    return taken
                else:
                    self._changed.wait(taken)
        return None

    def _run(self, account: str, job: _Job) -> None:
        job.call.run()
        with self._changed:
            self._running -= 1
            self._queue.ended(account, time.monotonic())
            self._changed.notify_all()


class ThreadLane:
    """One account's way to a shared thread."""

    def __init__(self, thread: SharedThread, account: str) -> None:
        self._thread = thread
        self._account = account

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the shared thread and wait for its result."""
        return await self._thread.call(self._account, partial(function, *args, **kwargs), aside=False)

    async def aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the same on another thread, for work that others do not wait for."""
        return await self._thread.call(self._account, partial(function, *args, **kwargs), aside=True)

    @property
    def is_wanted(self) -> bool:
        """Tell whether another account uses the thread too, so that each call is to be one piece of work: see `FairQueue`."""
        return self._thread.is_wanted(self._account)
