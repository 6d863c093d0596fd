"""The links of one worker to other trainers: each is dialled with a ticket and kept up, and all are ended together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog

from cloud_trainer.peers.dialer import PeerDialer
from shared.client.link_call import LinkCall, StreamListener
from shared.client.redialled_link import RedialledLink
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, DamagedMessageError, IsthmusError, ProtocolError, UnreachableError
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.rpc.status import passed_on
from shared.wire.isthmus.v1.link_pb2 import LinkPosition
from shared.wire.isthmus.v1.trainer_pb2 import Peer

_log = structlog.get_logger(__name__)
Failure = asyncio.Future[None]
"""A future that ends when something fails, with that failure."""
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


class PeerLinks:
    """All links that a worker dials under one placement and one term. Used on the event loop."""

    def __init__(
        self,
        executor: PlacementExecutor,
        peers: Sequence[Peer],
        session_term: int,
        dialer: PeerDialer,
        evaluation: int = 0,
    ) -> None:
        """executor: it computes already, and is stopped after these links. peers: workers to dial, each with its first ticket.

        evaluation: its number; 0 for training. No peer is dialled yet. Raises StatusError for an address that is not
        allowed, and ProtocolError for a peer to which the executor has no link.
        """
        named = [peer.worker for peer in peers]
        if not named or len(set(named)) < len(named):
            raise ProtocolError(f"{len(named)} peers are named; it must be one or more, each once")
        for peer in peers:
            if peer.worker not in executor.ends:
                raise ProtocolError(
                    f"there is no link between {executor.worker!r} and {peer.worker[:40]!r} under this placement"
                )
            dialer.check(peer)
        self._links = [
            DialledLink(executor, peer, session_term, evaluation, partial(dialer.client, peer.address))
            for peer in peers
        ]
        self._keeping: asyncio.Task[None] | None = None
        self.failure: Failure = asyncio.get_running_loop().create_future()
        """Ends with a failure of computing, or with a StatusError that names a peer whose link cannot be mended by
        dialling again. The other links are ended by then. `stop` cancels it.

        FAILED_PRECONDITION: the peer has lost the session or does not know the ticket; joining again may mend that.
        ABORTED, NOT_FOUND: the peer says that another agent has the session, or that it is closed for good.
        """

    @property
    def missing(self) -> list[str]:
        """List the peers to which there is no link now."""
        return [link.peer for link in self._links if link.call is None]

    def dial(self) -> None:
        """Dial all peers, and those whose links are lost again, until `stop`."""
        self._keeping = asyncio.create_task(self._keep_up())

    async def stop(self) -> None:
        """End all links."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        self.failure.cancel()

    async def _keep_up(self) -> None:
        try:
            await gathered(*(link.keep_up() for link in self._links))
        except Exception as failure:
            self.failure.set_exception(failure)
            self.failure.exception()  # its readers look when they need it
