"""Calls that run on a thread: one whose result an event loop waits for, and one without a result."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class ThreadCall(Generic[T]):
    """Made and waited for on an event loop, run on a thread. One that has not begun when the waiter goes away never begins.

    It has the context variables of the task that made it, so that its lines of the log name the same run.
    """

    __slots__ = ("_context", "_function", "_loop", "done")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        """Call the function on the thread, and report its result or error to the event loop."""
        if self.done.cancelled():
            return
        try:
            result = self._context.run(self._function)
        except BaseException as failure:  # any error belongs to the caller
            self._tell(self.done.set_exception, failure)
        else:
            self._tell(self.done.set_result, result)

    def drop(self) -> None:
        """Have the waiter be cancelled: the call will not run. On any thread."""
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self.done.cancel)

    def _tell(self, settle: Callable[[V], None], what: V) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._settle, settle, what)

    def _settle(self, settle: Callable[[V], None], what: V) -> None:
        if not self.done.done():
            settle(what)


class FireAndForget:
    """A call without a result, which does not fail. It has the context variables of its maker."""

    __slots__ = ("run",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.run: Callable[[], None] = partial(copy_context().run, function)

    def drop(self) -> None:
        """It will not run."""
