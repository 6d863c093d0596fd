"""Work that must not run on the event loop: each kind, as torch, codecs, loading and disk, has a thread of its own.

One thread each, so that a phase of the pipeline never runs twice at once and torch's state has one owner.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

from shared.concurrency.call import FireAndForget, ThreadCall

P = ParamSpec("P")
T = TypeVar("T")

SWITCH_SECONDS = 0.000002
"""Longest time for which a thread may hold Python's interpreter while another waits for it, where models are built beside
steps. A step waits whenever one thread hands over to another, some twenty times. With the default of 5 ms, building a model or
judging a placement would make a step of 1 ms take a hundred times as long."""


async def finish_calls(thread: "Runner") -> None:
    """Wait for the calls that a thread has begun: one goes on where nobody waits for it any more."""
    await thread.run(_nothing)


def _nothing() -> None:
    pass


def start_thread(name: str, prepare: Callable[[], None] | None, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that cannot keep the process from ending, and return once it is prepared.

    prepare: called on the thread before `work`. Raises what it raises, so that nobody waits for a thread that never works.
    """
    begun: Future[None] = Future()

    def prepared() -> None:
        try:
            if prepare is not None:
                prepare()
        except BaseException as failure:  # any error belongs to the caller
            begun.set_exception(failure)
            return
        begun.set_result(None)
        work()

    thread = threading.Thread(target=prepared, name=name, daemon=True)
    thread.start()
    begun.result()
    return thread


def yield_to_others(niceness: int) -> None:
    """Lower the priority of the calling thread alone, as nice(1) does for a process.

    A sandbox may forbid that; the thread then keeps its priority.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)  # on Linux, an id names a thread


class Runner(Protocol):
    """Calls functions elsewhere than on the event loop, one after the other, in the order of asking."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` and wait for its result. A call that has not begun when the caller goes away never begins."""

    async def aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the same in the same order, but so that other users of the thread do not wait for it."""

    @property
    def is_wanted(self) -> bool:
        """Tell whether others wait for their turn. A long call asks this now and then, and returns for them."""


class WorkerThread:
    """A thread that runs the given calls, one after the other, in their order."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        """prepare: called on the thread before anything else. Raises what it raises."""
        self._calls: SimpleQueue[ThreadCall[Any] | FireAndForget | None] = SimpleQueue()
        """The calls that wait; None ends the thread."""
        self._thread = start_thread(name, prepare, self._serve)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the thread and wait for its result."""
        call = ThreadCall(partial(function, *args, **kwargs))
        self._calls.put(call)
        return await call.done

    async def aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run as `Runner` says; this thread has no other user."""
        return await self.run(function, *args, **kwargs)

    def send(self, function: Callable[[], None]) -> None:
        """Have `function` called on the thread; it must not fail. May be asked for on any thread."""
        self._calls.put(FireAndForget(function))

    @property
    def is_wanted(self) -> bool:
        """See `Runner`."""
        return not self._calls.empty()

    def close(self) -> None:
        """Let the running call end, drop those that wait, and end the thread. Nothing may be given to it afterwards."""
        try:
            while (waiting := self._calls.get_nowait()) is not None:
                waiting.drop()
        except Empty:
            pass
        self._calls.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # otherwise its objects would stay until the next call
