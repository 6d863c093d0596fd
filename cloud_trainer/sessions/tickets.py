"""The tickets of a session: each lets another trainer dial this one once, for one link, or download some blocks.

A ticket is a random token, and only its hash is kept. A link has at most one ticket. A worker has at most one for its
blocks in memory, and one for its blocks of each checkpoint. Tickets are forgotten with their session, when an agent
joins with a higher term, and at the end of their evaluation. Another placement withdraws all but those for a
checkpoint, which does not change. Knows nothing of calls.
"""

import secrets
from collections.abc import Collection

from shared.bounds import MOST_WORKERS
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.transport.auth.callers import BlockOffer, PeerLink, PeerTicket
from shared.transport.auth.tokens import TOKEN_BYTES, digest_of


class Tickets:
    """The tickets of one session that can still be used."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._links: dict[bytes, PeerLink] = {}
        """Links by the hash of their ticket."""
        self._offers: dict[bytes, BlockOffer] = {}
        """Offers of blocks by the hash of their ticket."""

    def __len__(self) -> int:
        return len(self._links) + len(self._offers)

    def issue(self, term: int, workers: Collection[str], evaluation: int = 0) -> dict[str, str]:
        """Issue a new ticket for each worker that may dial. evaluation: its number; 0 for training.

        Earlier tickets for the same evaluation, or for training, are withdrawn, and all of other terms.
        """
        self._links = {
            digest: link
            for digest, link in self._links.items()
            if link.session_term == term and link.evaluation != evaluation
        }
        return {worker: self._new(PeerLink(self._session_id, term, worker, evaluation)) for worker in workers}

    def find(self, ticket: str) -> PeerTicket | None:
        """Return the purpose of a ticket, if it can still be used. This does not use it."""
        digest = digest_of(ticket)
        link = self._links.get(digest)
        return None if link is None else PeerTicket(link, digest)

    def take(self, ticket: PeerTicket, link: PeerLink) -> str | None:
        """Use a ticket up to open a link, and return the next one for the same link.

        Returns None, and uses nothing up, if the ticket is for another link, or was used or withdrawn since it was found.
        """
        if ticket.link != link or self._links.get(ticket.digest) != link:
            return None
        del self._links[ticket.digest]
        return self._new(link)

    def withdraw(self, evaluation: int) -> None:
        """Forget the tickets of an evaluation, or of training (0)."""
        self._links = {digest: link for digest, link in self._links.items() if link.evaluation != evaluation}

    def offer(self, worker: str, blocks: Collection[int], checkpoint: CheckpointName | None = None) -> str:
        """Issue a ticket with which a worker may download these blocks, and no others, as often as it likes.

        checkpoint: their source; None for memory. The worker's earlier ticket for memory, or for any checkpoint, is withdrawn.
        Raises ProtocolError if as many workers have such tickets as a session can have.
        """
        offered = BlockOffer(self._session_id, worker, frozenset(blocks), checkpoint)
        if len({worker, *(offer.worker for offer in self._offers.values())}) > MOST_WORKERS:
            raise ProtocolError(f"blocks are offered to {MOST_WORKERS} workers already, and a session has no more")
        self._offers = {
            digest: offer
            for digest, offer in self._offers.items()
            if offer.worker != worker or (offer.checkpoint is None) != (checkpoint is None)
        }
        ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._offers[digest_of(ticket)] = offered
        return ticket

    def find_offer(self, ticket: str) -> BlockOffer | None:
        """Return the blocks that a ticket is for, if any."""
        return self._offers.get(digest_of(ticket))

    @property
    def offers_memory(self) -> bool:
        """Tell whether any worker may download blocks from memory."""
        return any(offer.checkpoint is None for offer in self._offers.values())

    def withdraw_offers(self) -> None:
        """Forget the tickets for blocks in memory."""
        self._offers = {digest: offer for digest, offer in self._offers.items() if offer.checkpoint is not None}

    def withdraw_all_offers(self) -> None:
        """Forget all tickets for blocks."""
        self._offers.clear()

    def _new(self, link: PeerLink) -> str:
        ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._links[digest_of(ticket)] = link
        return ticket
