"""The thread of one callback: it is told the events of the run in their order, and no step waits for it."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue

import structlog

from edge_agent.callbacks.run_handle import RunHandle
from edge_agent.training.events import Ended, StepFinished
from shared.concurrency.threads import start_thread
from shared.events import Event
from shared.foreign import described, place_of

_log = structlog.get_logger(__name__)
Callback = Callable[[Event, RunHandle], object]
"""A callback: called with each event and with the run."""
MOST_STEPS_WAITING, MOST_WAITING = 1000, 2000
"""Events that wait for a callback, from which on those of steps are dropped, and all but the end of the run."""


class CallbackThread:
    """One callback on its thread. `tell` and `end` are for the event loop."""

    def __init__(self, name: str, callback: Callback) -> None:
        self.name = name
        self._callback = callback
        self._waiting: SimpleQueue[Event] = SimpleQueue()
        self._is_out = False
        """True once it has failed, or was too slow for the end of the run: it is told nothing more."""
        self._has_dropped = False
        self._done = asyncio.Event()

    def start(self, handle: RunHandle) -> None:
        """Begin to call it. The events that it was told before come first."""
        loop, context = asyncio.get_running_loop(), copy_context()

        def work() -> None:
            context.run(self._run, handle)  # its log names the run
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._done.set)

        start_thread(f"callback {self.name}", None, work)

    def tell(self, event: Event) -> None:
        """Have it called with an event, after those that wait. What is dropped is said once."""
        if self._is_out:
            return
        most = MOST_STEPS_WAITING if type(event) is StepFinished else MOST_WAITING
        if self._waiting.qsize() < most or type(event) is Ended:
            self._waiting.put(event)
        elif not self._has_dropped:
            self._has_dropped = True
            _log.warning("a callback is too slow; it misses events", callback=self.name, waiting=self._waiting.qsize())

    async def end(self, seconds: float) -> None:
        """Wait until it was called with the end of the run, but no longer than this."""
        try:
            async with asyncio.timeout(seconds):
                await self._done.wait()
        except TimeoutError:
            self._is_out = True
            _log.warning("a callback is too slow; the run ends without it", callback=self.name)

    def _run(self, handle: RunHandle) -> None:
        event: Event | None = None
        while not self._is_out and type(event) is not Ended:
            event = self._waiting.get()
            try:
                self._callback(event, handle)
            except BaseException as failure:  # a user's code raises anything, and nothing of it ends a run
                self._is_out = True
                told = {"callback": self.name, "reason": described(failure), "place": place_of(failure)}
                _log.warning("a callback has failed; the run goes on without it", **told)
