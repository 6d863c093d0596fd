"""One link of a worker's run to another trainer, which is dialled again whenever it is lost."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from shared.client.retry import Spacing
from shared.client.stream_call import LinkCall, StreamListener
from shared.client.trainer import TrainerClient
from shared.errors import (
    BusyError,
    DamagedMessageError,
    IsthmusError,
    UnreachableError,
)
from shared.runtime.worker_run import WorkerRun
from shared.transport.rpc.status import passed_on
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import LinkOpening, LinkPosition

_log = structlog.get_logger(__name__)
END_SECONDS = 2.0
"""How long a peer has to end a link that is told to end, before it is given up. A peer that is there needs a round trip."""


class DialledLink:
    """A link, from its first ticket on."""

    def __init__(
        self,
        run: WorkerRun,
        peer: str,
        opening: LinkOpening,
        ticket: str,
        new_client: Callable[[], TrainerClient],
        on_delivered: Callable[[WireTensor, float, int], None],
    ) -> None:
        """peer: the worker there, to which the run has a link. new_client: makes one that is not connected yet.

        on_delivered: see `StreamListener`.
        """
        self._run = run
        self.peer = peer
        self._end = run.links[peer]
        self._opening = opening
        self._ticket = ticket
        self._new_client = new_client
        self._on_delivered = on_delivered
        self._spacing = Spacing()
        self.is_missing = True
        """Whether the link is not up."""
        self._is_logged = False
        """Whether the log says that it is not, so that no further attempt is worth a line."""
        self._damaged_at: LinkPosition | None = None
        """Where the link stood when a message was damaged last."""

    async def keep_up(self) -> None:
        """Dial, serve and dial again until this is cancelled, which ends the link.

        Raises what computing fails with, and StatusError for what dialling again cannot mend.
        """
        while True:
            retry_after_seconds = 0.0
            try:
                await self._serve_one()
                reason = "the peer has ended it"
            except IsthmusError as failure:
                if self._run.has_failed:
                    self._run.failure.result()
                if not self._may_pass(failure):
                    raise passed_on(failure, f"the link to worker {self.peer!r} cannot go on: {failure}") from failure
                if isinstance(failure, UnreachableError | BusyError):
                    retry_after_seconds = failure.retry_after_seconds
                reason = str(failure)
            self.is_missing = True
            if not self._is_logged:
                _log.warning("link to a peer lost; dialling again", peer=self.peer, reason=reason)
            self._is_logged = True
            await self._spacing.wait(self._end.position, retry_after_seconds)

    async def _serve_one(self) -> None:
        """Dial once, and serve the link until it ends or is lost."""
        listener = StreamListener(self._end.accept, self._oldest_owed, self._on_delivered)
        async with self._new_client() as client:
            call, self._ticket = await client.link(self._opening, listener, self._ticket)
            self.is_missing = self._is_logged = False
            _log.info("peer dialled", peer=self.peer)
            await self._serve(call)

    async def _serve(self, call: LinkCall) -> None:
        serving = asyncio.create_task(self._run.serve(self.peer, call.stream))
        try:
            await asyncio.wait({serving})
            serving.result()
        finally:
            # The peer ends the stream once it hears that no more comes; to cancel what reads would look like a lost link.
            with suppress(IsthmusError, TimeoutError):
                if not serving.done():
                    async with asyncio.timeout(END_SECONDS):
                        await call.end_writing()
                        await asyncio.wait({serving})
            call.cancel()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _oldest_owed(self) -> int | None:
        return min(self._run.in_flight, default=None)

    def _may_pass(self, failure: IsthmusError) -> bool:
        """Whether dialling again may mend this. Damage does not happen twice at one place, unless it is not by chance."""
        if isinstance(failure, DamagedMessageError):
            before, self._damaged_at = self._damaged_at, self._end.position
            return before != self._damaged_at
        return isinstance(failure, UnreachableError | BusyError)
