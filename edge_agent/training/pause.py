"""An operator's pause: the run stands still at a step boundary, with its session open."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from edge_agent.training.pipeline import StreamSource
from edge_agent.training.recovery import TrainerRestored
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.step_boundary import StepBoundary
from shared.client.training_call import Stream
from shared.errors import IsthmusError, ProtocolError, StoppedError
from shared.wire.isthmus.v1.trainer_pb2 import TrainResponse

_log = structlog.get_logger(__name__)


class Pause:
    """An operator asks for it, and the run stands still for it. Used on the event loop."""

    def __init__(self, boundary: StepBoundary, shutdown: Shutdown) -> None:
        self.boundary = boundary
        self.shutdown = shutdown
        self.requested = False
        self._stands = asyncio.Event()
        self._let_go = asyncio.Event()

    async def pause(self) -> None:
        """Ask the run to stand still, and wait until it does. Raises StoppedError when it is let go, or ends, before."""
        self.requested = True
        self._let_go.clear()
        self.boundary.request()
        await _first(self._stands.wait(), self._let_go.wait())
        if not self._stands.is_set():
            raise StoppedError("the run was resumed, or ended, before it stood still")

    def release(self) -> None:
        """Let the run go on, and who waits for it to stand still."""
        self.requested = False
        self._let_go.set()

    async def stand_still(
        self,
        streams: StreamSource,
        at_boundary: Callable[[], Awaitable[None]],
        take_message: Callable[[TrainResponse], None],
    ) -> TrainerRestored | None:
        """Stand still until the run is let go or has to stop; called with nothing in flight.

        at_boundary: does what is wanted of such a moment, and is called whenever something is. take_message: hears the
        trainer. Returns early when a lost stream has made the trainer go back.
        """
        _log.info("standing still")
        self._stands.set()
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
            self._stands.clear()
        _log.info("going on")
        return None

    async def _wait(self, stream: Stream, take_message: Callable[[TrainResponse], None]) -> None:
        """Wait until training may go on, a boundary is wanted, or the trainer has said something."""
        heard = stream.receive_ahead()
        await _first(self._let_go.wait(), self.boundary.wait_for_request(), heard)
        if heard.done():
            event = await stream.receive()
            if event is None:
                raise ProtocolError("the trainer ended the stream while training stood still")
            take_message(event[0])


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for the first of these; coroutines among them are given up then, tasks go on."""
    ours = [wait if isinstance(wait, asyncio.Task) else asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(ours, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(ours, waits, strict=True):
            if task is not wait:
                task.cancel()
