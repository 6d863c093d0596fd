"""Step boundaries: moments with nothing in flight, which operators, checkpoints, moves of blocks and a stop request.

At one of them a run stands still for an operator, while its session stays open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from edge_agent.training.shutdown import Shutdown
from shared.errors import StoppedError

T = TypeVar("T")


class StepBoundary:
    """The request for the next boundary: any part may make it, and the run fulfils it. Used on the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._at_request: list[Callable[[], object]] = []
        self.is_end_requested = False
        """True if the run is to finish at the next one, as if its last step were there. It stands in the run's next session."""

    @property
    def requested(self) -> bool:
        """Tell whether the next batch is the last before the boundary."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a boundary as soon as possible."""
        self._requested.set()
        for stop_feeding in self._at_request:
            stop_feeding()

    def request_end(self) -> None:
        """Request that the run finishes at the next boundary after its first step."""
        self.is_end_requested = True
        self.request()

    @contextmanager
    def stopping(self, stop_feeding: Callable[[], object]) -> Iterator[None]:
        """Have a request stop the feeding of batches at once while the body runs, before other work can begin."""
        self._at_request.append(stop_feeding)
        try:
            yield
        finally:
            self._at_request.remove(stop_feeding)

    async def do_unless(self, work: Coroutine[Any, Any, T], is_futile: Callable[[], bool]) -> T | None:
        """Do `work`, unless it is futile, now or at a later request: then it is cancelled, and None is returned."""
        futile = asyncio.get_running_loop().create_future()

        def judge() -> None:
            if is_futile() and not futile.done():
                futile.set_result(None)

        task = asyncio.create_task(work)
        try:
            with self.stopping(judge):
                judge()
                await asyncio.wait({task, futile}, return_when=asyncio.FIRST_COMPLETED)
            return None if futile.done() else await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    def clear_request(self) -> None:
        """Forget the request. The run is at a boundary, and now serves all work that waits for one."""
        self._requested.clear()

    async def wait_for_request(self) -> None:
        """Wait until a boundary is requested."""
        await self._requested.wait()


class Pause:
    """A pause that an operator requests. It lasts until it is released. Used on the event loop."""

    def __init__(self, boundary: StepBoundary, shutdown: Shutdown) -> None:
        self.boundary = boundary
        self.shutdown = shutdown
        self.requested = False
        self._paused = asyncio.Event()
        self._released = asyncio.Event()

    async def pause(self) -> None:
        """Request a pause, and wait for it. Raises StoppedError if it is released, or the run ends, before."""
        self.requested = True
        self._released.clear()
        self.boundary.request()
        await _first(self._paused.wait(), self._released.wait())
        if not self._paused.is_set():
            raise StoppedError("the run was resumed, or ended, before it stood still")

    def release(self) -> None:
        """Let the run continue, and the callers that wait for its pause."""
        self.requested = False
        self._released.set()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Mark the run as standing still, with nothing in flight, while the body runs."""
        self._paused.set()
        try:
            yield
        finally:
            self._paused.clear()

    async def wait(self) -> None:
        """Wait until the run is released, or a boundary is requested."""
        await _first(self._released.wait(), self.boundary.wait_for_request())


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for the first of these. Then coroutines among the others are cancelled, and tasks continue."""
    ours = [wait if isinstance(wait, asyncio.Task) else asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(ours, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(ours, waits, strict=True):
            if task is not wait:
                task.cancel()
