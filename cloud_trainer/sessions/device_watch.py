"""The watch for a device that has failed for good: it tells the callers, and ends the process so that its supervisor
starts another.

An assertion in a kernel, for example an index out of range in a user's loss, makes the device useless for every session
of the process.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import structlog

from shared.errors import DeviceError, one_line
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError

_log = structlog.get_logger(__name__)
T = TypeVar("T")
Call = Callable[[Any, Context], Awaitable[T]]


class DeviceWatch:
    """A watch that notices in any call that the device has failed."""

    def __init__(self, stop_trainer: Callable[[], object]) -> None:
        """stop_trainer: called once, on the event loop, when the device has failed."""
        self.failure: DeviceError | None = None
        self._stop_trainer = stop_trainer

    def watched(self, call: Call[T]) -> Call[T]:
        """Wrap `call`: the caller that makes the device fail gets the reason, and every later caller gets UNAVAILABLE."""

        @functools.wraps(call)
        async def watching(request: Any, context: Context) -> T:
            self._check()
            try:
                return await call(request, context)
            except DeviceError as failure:
                self._check()
                self.failure = failure
                _log.error("the device has failed; the trainer ends", reason=one_line(str(failure)))
                self._stop_trainer()
                raise

        return watching

    def _check(self) -> None:
        if self.failure is not None:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE, "the trainer's device has failed, so the trainer starts again; try again"
            )
