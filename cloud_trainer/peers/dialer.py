"""The dialler of other trainers: those that are allowed, and connections to them. It never uses an agent's token."""

import grpc

from cloud_trainer.config import PeersConfig
from shared.bounds import is_session_id, is_ticket
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import tls_access
from shared.client.link_measurement import CALL_SECONDS
from shared.client.probing import ProbeCalls
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig, is_allowed, is_loopback
from shared.errors import ConfigError, IsthmusError, ProtocolError
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Peer, PeerCheck

LOOK_SECONDS = 5.0
"""Longest time to an answer of another trainer that is only checked."""


class PeerDialer:
    """Makes clients of other trainers."""

    def __init__(self, peers: PeersConfig, link: LinkConfig, *, insecure: bool) -> None:
        """insecure: True if other machines may be dialled in clear text.

        Raises ConfigError if they would be and must not, and for files that cannot be used.
        """
        abroad = [address for address in peers.allowed if not is_loopback(address)]
        if abroad and not (peers.tls.used or insecure):
            raise ConfigError(
                f"features and tickets would go to {abroad[0]} in clear text (peers.allowed); set peers.tls.enabled = true, "
                "or server.insecure = true for a network that is trusted as a whole"
            )
        self._allowed = peers.allowed
        self._link = link
        self.access = tls_access(peers.tls, "peers.tls", trainer_section="")

    def check(self, peer: Peer) -> None:
        """Refuse an address that the operator has not allowed, and an invalid session or ticket. Raises StatusError or
        ProtocolError.
        """
        self.check_address(peer.address)
        if not is_session_id(peer.session_id):
            raise ProtocolError(f"{peer.session_id[:40]!r} can be no session of {peer.worker[:40]!r}")
        if not is_ticket(peer.ticket):  # a header must carry it
            raise ProtocolError(f"what should let this trainer dial {peer.worker[:40]!r} can be no ticket")

    def check_address(self, address: str) -> None:
        """Refuse an address that the operator has not allowed. Raises StatusError."""
        if not is_allowed(address, self._allowed):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this trainer may not dial {address[:100]!r}: its operator has not allowed that address (peers.allowed)",
            )

    async def look(self, address: str) -> PeerCheck:
        """Check whether the trainer at an address could be dialled now."""
        if not is_allowed(address, self._allowed):
            return PeerCheck(reason="its operator has not allowed that address (peers.allowed)")
        try:
            async with self.client(address, LOOK_SECONDS) as client:
                await client.check_answers()  # else the peer logs a failed handshake
                return PeerCheck(allowed=True)
        except IsthmusError as failure:
            return PeerCheck(allowed=True, reason=str(failure))

    def client(self, address: str, connect_timeout_seconds: float = CALL_SECONDS) -> TrainerClient:
        """Make a client of the trainer at an allowed address. It is not connected yet."""
        trainer = TrainerAddressConfig(address=address, connect_timeout_seconds=connect_timeout_seconds)
        return TrainerClient(trainer, self._link, access=self.access)

    def probe(self, address: str, ticket: str) -> ProbeCalls:
        """Make calls that measure the link to the trainer at an allowed address."""
        return ProbeCalls(address, self.access, self._link, CALL_SECONDS, ticket)
