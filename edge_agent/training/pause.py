"""A run that stands still by an operator's word, at a step boundary and with its session open."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from edge_agent.training.connection import Connection
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.shutdown import Shutdown
from shared.errors import IsthmusError, ProtocolError, StoppedError

_log = structlog.get_logger(__name__)


class Pause:
    """Asked for by an operator, kept by the run. Used on the event loop."""

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], None] = lambda: None
        """Called when the run is to stand still."""
        self._stands = asyncio.Event()
        self._let_go = asyncio.Event()

    async def pause(self) -> None:
        """Ask the run to stand still, and wait until it does. Raises StoppedError when it is let go, or ends, before."""
        self.requested = True
        self._let_go.clear()
        self.on_request()
        await _first(self._stands.wait(), self._let_go.wait())
        if not self._stands.is_set():
            raise StoppedError("the run was resumed, or ended, before it stood still")

    def release(self) -> None:
        """Let the run go on, and who waits for it to stand still."""
        self.requested = False
        self._let_go.set()

    async def wait(
        self, shutdown: Shutdown, pipeline: Pipeline, connection: Connection, at_boundary: Callable[[], Awaitable[None]]
    ) -> None:
        """Stand still until the run is let go or has to stop; called with nothing in flight.

        at_boundary: does what is wanted of such a moment, and is called whenever something is.
        """
        _log.info("standing still")
        self._stands.set()
        try:
            while self.requested and not shutdown.requested:
                pipeline.boundary_wanted.clear()
                await at_boundary()
                await self._news(pipeline, connection)
        finally:
            self._stands.clear()
        _log.info("going on")

    async def _news(self, pipeline: Pipeline, connection: Connection) -> None:
        """Wait until training may go on, a boundary is wanted, or the trainer has said something."""
        try:
            stream = connection.stream
            heard = stream.receive_ahead()
            await _first(self._let_go.wait(), pipeline.boundary_wanted.wait(), heard)
            if heard.done():
                event = await stream.receive()
                if event is None:
                    raise ProtocolError("the trainer ended the stream while training stood still")
                pipeline.on_note(event[0])
        except IsthmusError as lost:
            attached = await connection.resume(lost, pipeline.position)
            pipeline.announced = attached.deployment


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for the first of these; coroutines among them are given up then, tasks go on."""
    ours = [wait if isinstance(wait, asyncio.Task) else asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(ours, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(ours, waits, strict=True):
            if task is not wait:
                task.cancel()
