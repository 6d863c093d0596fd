"""A run as its callbacks steer it: by the calls of an operator."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog

from shared.errors import IsthmusError
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import control_pb2 as pb

_log = structlog.get_logger(__name__)


class Operated(Protocol):
    """The calls of `EdgeControlService` that a callback may make."""

    def drain(self, request: pb.EdgeControlServiceDrainRequest, /) -> Awaitable[object]:
        """End the run."""

    def take_checkpoint(self, request: pb.TakeCheckpointRequest, /) -> Awaitable[object]:
        """Take a checkpoint at every worker."""


class RunHandle:
    """A run, for one of its callbacks. Used on the thread of that; its requests return at once."""

    def __init__(self, name: str, operated: Operated) -> None:
        """Made on the event loop. name: of the callback, for the log."""
        self._name = name
        self._operated = operated
        self._loop = asyncio.get_running_loop()
        self._asked = set[asyncio.Task[None]]()

    def drain(self) -> None:
        """Ask for the end of the run at its next step boundary, as `edge-agent drain` does; `run --resume` goes on."""
        self._ask(lambda: self._operated.drain(pb.EdgeControlServiceDrainRequest()))

    def finish(self) -> None:
        """Ask the run to finish at its next step boundary with its results, as `edge-agent drain --finish` does."""
        self._ask(lambda: self._operated.drain(pb.EdgeControlServiceDrainRequest(finish=True)))

    def take_checkpoint(self) -> None:
        """Ask for a checkpoint at the next step boundary, as `edge-agent checkpoint` does."""
        self._ask(lambda: self._operated.take_checkpoint(pb.TakeCheckpointRequest()))

    def _ask(self, call: Callable[[], Awaitable[object]]) -> None:
        with suppress(
            RuntimeError
        ):  # the loop is closed where the run has ended without this callback, which was too slow
            self._loop.call_soon_threadsafe(self._begin, call)

    def _begin(self, call: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.create_task(self._made(call))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _made(self, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except (IsthmusError, StatusError) as refusal:
            _log.warning("what a callback asks for is refused", callback=self._name, reason=str(refusal))
