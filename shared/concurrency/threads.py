"""Work that must not run on the event loop: each kind, as torch, codecs, loading and disk, has a thread of its own.

One thread each, so that a phase of the pipeline never runs twice at once and torch's state has one owner.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Calls functions elsewhere than on the event loop, one after the other, in the order of asking."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` and wait for its result. A call that has not begun when the caller goes away never begins."""

    @property
    def is_wanted(self) -> bool:
        """Whether others wait for their turn. A call that could go on and on asks this now and then, and returns for them."""


class _Call(NamedTuple):
    function: Callable[[], Any]
    done: "Future[Any]"


class Worker:
    """A thread that runs what it is given, one call after the other, in the order of giving."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        """prepare: called on the thread before anything else."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        """The calls that wait; None ends the thread."""
        # A process that ends early, before whoever closes this is there, must not wait for it.
        self._thread = threading.Thread(target=self._serve, args=(prepare,), name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the thread and wait for its result."""
        return await asyncio.wrap_future(self.call(partial(function, *args, **kwargs)))

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Have `function` called on the thread. May be asked for on any thread."""
        done: Future[T] = Future()
        self._calls.put(_Call(function, done))
        return done

    @property
    def is_wanted(self) -> bool:
        """See `Runner`."""
        return not self._calls.empty()

    def close(self) -> None:
        """Let the running call end, drop those that wait, and end the thread. Nothing may be given to it afterwards."""
        try:
            while (waiting := self._calls.get_nowait()) is not None:
                waiting.done.cancel()
        except Empty:
            pass
        self._calls.put(None)
        self._thread.join()

    def _serve(self, prepare: Callable[[], None] | None) -> None:
        if prepare is not None:
            prepare()
        while (call := self._calls.get()) is not None:
            if call.done.set_running_or_notify_cancel():
                try:
                    result = call.function()
                except BaseException as failure:  # whatever it is, it belongs to the caller
                    call.done.set_exception(failure)
                else:
                    call.done.set_result(result)
                    del result
            del call  # or what it held would be kept until the next comes
