"""The attachment of a session: the term of the edge that attached last, and the task that serves its stream."""

import asyncio
import time

import grpc

from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Fence


class Attachment:
    """The attachment of one session. Changed on the event loop."""

    def __init__(self, session_id: str) -> None:
        self.term = 0
        """The term of the edge that attached last; 0 before the first."""
        self.lost_at: float | None = None
        """When the edge was lost, by time.monotonic; None while it is attached, and after it has ended its stream itself."""
        self._session_id = session_id
        self._serving: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether a training stream was ever attached."""
        return self.term > 0

    @property
    def attached(self) -> bool:
        """Whether a training stream is attached."""
        return self._serving is not None

    def attach(self, serving: "asyncio.Task[None]") -> None:
        """Note that a stream is attached. serving: the task that serves it; cancelling it ends the stream."""
        self._serving, self.lost_at = serving, None

    def detach(self, serving: "asyncio.Task[None]") -> bool:
        """Note that a stream has ended. Returns whether it was the one that is attached."""
        if self._serving is not serving:
            return False
        self._serving = None
        if serving.cancelled() or serving.exception() is not None:
            self.lost_at = time.monotonic()
        return True

    async def wait_until_ended(self) -> None:
        """Wait until the stream that is attached, if any, has ended."""
        if self._serving is not None:
            await asyncio.wait({self._serving})

    async def end(self) -> None:
        """End the stream that is attached, if any. When this returns, nothing that it brought is still being computed."""
        if self._serving is not None:
            self._serving.cancel()
        await self.wait_until_ended()

    def check_fence(self, fence: Fence) -> None:
        """Refuse a call of an edge that is not the one that attached last. Raises StatusError."""
        if fence.session_term < self.term:
            raise StatusError(
                grpc.StatusCode.ABORTED,
                f"session {self._session_id} was attached with term {self.term}; a call of term {fence.session_term} came",
            )
