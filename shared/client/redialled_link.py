"""One link that a worker dials: served, and dialled again whenever it is lost."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

import structlog

from shared.client.link_call import LinkCall
from shared.client.retry import Spacing
from shared.errors import BusyError, IsthmusError, UnreachableError
from shared.runtime.placement_executor import PlacementExecutor
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1.link_pb2 import LinkOpening

_log = structlog.get_logger(__name__)


class RedialledLink(ABC):
    """A link of a worker. The dialling side says how to dial, and which failures dialling again may mend. Used on
    the event loop."""

    def __init__(
        self, executor: PlacementExecutor, peer: str, session_id: str, session_term: int, evaluation: int
    ) -> None:
        """peer: the worker there, one of `executor.ends`. session_id: of the session there. evaluation: 0 for training."""
        self.executor = executor
        self.peer = peer
        self.end = executor.ends[peer]
        self.opening = LinkOpening(
            protocol_version=PROTOCOL_VERSION,
            session_id=session_id,
            session_term=session_term,
            worker=executor.worker,
            evaluation=evaluation,
        )
        """First message of every call."""
        self.call: LinkCall | None = None
        """The call of now; None while the link is down."""

    @abstractmethod
    def dialled(self) -> AbstractAsyncContextManager[LinkCall]:
        """Dial, and have the call while the body runs. Raises IsthmusError."""

    @abstractmethod
    async def serve(self, call: LinkCall) -> None:
        """Serve a call. Returns once the link is ended from here. Raises IsthmusError where it has ended otherwise."""

    @abstractmethod
    def error_that_ends(self, failure: IsthmusError) -> IsthmusError | None:
        """Return the error with which the link ends; None where it is dialled again. `call` is still the one that failed."""

    async def keep_up(self) -> None:
        """Dial, serve and dial again until the link is ended from here, or this is cancelled.

        Raises the failure of computing, and what `error_that_ends` returns.
        """
        spacing, is_logged = Spacing(), False
        while True:
            try:
                async with self.dialled() as call:
                    self.call, is_logged = call, False
                    await self.serve(call)
                return
            except IsthmusError as failure:
                if self.executor.has_failed:
                    self.executor.failure.result()
                if (error := self.error_that_ends(failure)) is failure:
                    raise
                if error is not None:
                    raise error from failure
                retry_after_seconds = (
                    failure.retry_after_seconds if isinstance(failure, UnreachableError | BusyError) else 0.0
                )
                if not is_logged:
                    _log.warning("link lost; dialling again", peer=self.peer, reason=str(failure))
                is_logged = True
            finally:
                self.call = None
            await spacing.wait(self.end.position, retry_after_seconds)
