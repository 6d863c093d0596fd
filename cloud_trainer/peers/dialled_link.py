"""One link of a worker to another trainer, dialled with a ticket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from shared.client.link_call import LinkCall, StreamListener
from shared.client.redialled_link import RedialledLink
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, DamagedMessageError, IsthmusError, UnreachableError
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.rpc.status import passed_on
from shared.wire.isthmus.v1.link_pb2 import LinkPosition
from shared.wire.isthmus.v1.trainer_pb2 import Peer

_log = structlog.get_logger(__name__)
END_SECONDS = 2.0
"""Time in which a peer must end a link on request, before the link is given up. A live peer needs a round trip."""


class DialledLink(RedialledLink):
    """A link, from its first ticket on. Cancelling `keep_up` ends it."""

    def __init__(
        self,
        executor: PlacementExecutor,
        peer: Peer,
        session_term: int,
        evaluation: int,
        new_client: Callable[[], TrainerClient],
    ) -> None:
        """new_client: makes a client that is not connected yet."""
        super().__init__(executor, peer.worker, peer.session_id, session_term, evaluation)
        self._ticket = peer.ticket
        self._new_client = new_client
        end = self.end
        self._listener = StreamListener(end.accept, lambda: min(executor.under_way, default=None), end.note_delivered)
        self._damaged_at: LinkPosition | None = None
        """Position of the link when a message was last damaged."""

    @asynccontextmanager
    async def dialled(self) -> AsyncIterator[LinkCall]:
        """Dial as `RedialledLink` does."""
        async with self._new_client() as client:
            call, self._ticket = await client.link(self.opening, self._listener, self._ticket)
            _log.info("peer dialled", peer=self.peer)
            yield call

    async def serve(self, call: LinkCall) -> None:
        """Serve as `RedialledLink` does."""
        serving = asyncio.create_task(self.executor.serve(self.peer, call.stream))
        try:
            await asyncio.wait({serving})
            serving.result()
            raise UnreachableError("the peer has ended it")
        finally:
            # The peer ends the stream once it hears that no more comes. If the reader were cancelled, the link would
            # look lost.
            with suppress(IsthmusError, TimeoutError):
                if not serving.done():
                    async with asyncio.timeout(END_SECONDS):
                        await call.end_writing()
                        await asyncio.wait({serving})
            call.cancel()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def error_that_ends(self, failure: IsthmusError) -> IsthmusError | None:
        """Answer as `RedialledLink` says. Damage at one place twice is no accident."""
        if isinstance(failure, DamagedMessageError):
            before, self._damaged_at = self._damaged_at, self.end.position
            if before != self._damaged_at:
                return None
        if isinstance(failure, UnreachableError | BusyError):
            return None
        return passed_on(failure, f"the link to worker {self.peer!r} cannot go on: {failure}")
