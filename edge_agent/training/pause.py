"""An operator's pause: training stops at a step boundary, and the session stays open."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from edge_agent.training.pipeline import StreamSource
from edge_agent.training.recovery import TrainerRestored
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.step_boundary import StepBoundary
from shared.client.stream_call import Stream
from shared.errors import IsthmusError, ProtocolError, StoppedError
from shared.wire.isthmus.v1.trainer_pb2 import TrainResponse

_log = structlog.get_logger(__name__)


class Pause:
    """An operator asks for a pause, and the run stays paused until it is released. Used on the event loop."""

    def __init__(self, boundary: StepBoundary, shutdown: Shutdown) -> None:
        self.boundary = boundary
        self.shutdown = shutdown
        self.requested = False
        self._paused = asyncio.Event()
        self._released = asyncio.Event()

    async def pause(self) -> None:
        """Ask the run to pause, and wait until it does. Raises StoppedError when it is released, or ends, before."""
        self.requested = True
        self._released.clear()
        self.boundary.request()
        await _first(self._paused.wait(), self._released.wait())
        if not self._paused.is_set():
            raise StoppedError("the run was resumed, or ended, before it stood still")

    def release(self) -> None:
        """Let the run go on, and everybody who waits for it to pause."""
        self.requested = False
        self._released.set()

    async def wait(self) -> None:
        """Stand still until the run is released, or a boundary is requested. Called with nothing in flight."""
        if not self.requested:
            return
        self._paused.set()
        self.boundary.clear_request()
        try:
            await _first(self._released.wait(), self.boundary.wait_for_request())
        finally:
            if not self.requested or self.shutdown.requested:
                self._paused.clear()

    async def stay_paused(
        self,
        streams: StreamSource,
        at_boundary: Callable[[], Awaitable[None]],
        take_message: Callable[[TrainResponse], None],
    ) -> TrainerRestored | None:
        """Stay paused until the run is released or has to stop. Called with nothing in flight.

        at_boundary: called at once, and again whenever somebody requests a boundary. take_message: takes what the trainer
        says. Returns early when the trainer has restored a checkpoint after a lost stream.
        """
        _log.info("standing still")
        self._paused.set()
        try:
            while self.requested and not self.shutdown.requested:
                self.boundary.clear_request()
                await at_boundary()
                try:
                    await self._wait(streams.stream, take_message)
                except IsthmusError as lost:
                    if isinstance(outcome := await streams.reattach(lost), TrainerRestored):
                        return outcome
        finally:
            self._paused.clear()
        _log.info("going on")
        return None

    async def _wait(self, stream: Stream, take_message: Callable[[TrainResponse], None]) -> None:
        """Wait until training may go on, a boundary is requested, or the trainer has said something."""
        received = stream.receive_ahead()
        await _first(self._released.wait(), self.boundary.wait_for_request(), received)
        if received.done():
            event = await stream.receive()
            if event is None:
                raise ProtocolError("the trainer ended the stream while training stood still")
            take_message(event[0])


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for the first of these. Coroutines among the others are cancelled then; tasks go on."""
    ours = [wait if isinstance(wait, asyncio.Task) else asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(ours, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(ours, waits, strict=True):
            if task is not wait:
                task.cancel()
