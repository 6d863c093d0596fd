"""The links of one worker to other trainers: dialled, kept up, and ended together."""

import asyncio
from collections.abc import Sequence
from functools import partial

from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.peers.dialled_link import DialledLink
from shared.concurrency.tasks import gathered
from shared.errors import ProtocolError
from shared.runtime.placement_executor import PlacementExecutor
from shared.wire.isthmus.v1.trainer_pb2 import Peer

Failure = asyncio.Future[None]
"""A future that ends when something fails, with that failure."""


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
            DialledLink(
                executor,
                peer,
                session_term,
                evaluation,
                partial(dialer.client, peer.address),
            )
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
