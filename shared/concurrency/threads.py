"""Work that must not run on the event loop: each kind, as torch, codecs, loading and disk, has a thread of its own.

One thread each, so that a phase of the pipeline never runs twice at once and torch's state has one owner.
"""

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

from shared.concurrency.call import Call, FireAndForget

P = ParamSpec("P")
T = TypeVar("T")


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
        """prepare: called on the thread before anything else."""
        self._calls: SimpleQueue[Call[Any] | FireAndForget | None] = SimpleQueue()
        """The calls that wait; None ends the thread."""
        # The end of a process must not wait for the thread if the process ends before closing it.
        self._thread = threading.Thread(target=self._serve, args=(prepare,), name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the thread and wait for its result."""
        call = Call(partial(function, *args, **kwargs))
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

    def _serve(self, prepare: Callable[[], None] | None) -> None:
        if prepare is not None:
            prepare()
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # otherwise its objects would stay until the next call
