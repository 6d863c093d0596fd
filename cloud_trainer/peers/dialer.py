"""Which other trainers this one may dial, and how it makes connections to them: never with an agent's token."""

import grpc

from cloud_trainer.config import PeersConfig
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import tls_access
from shared.client.link_measurement import CALL_SECONDS
from shared.client.probing import ProbeCalls
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig, is_allowed, is_loopback
from shared.errors import ConfigError
from shared.transport.rpc.status import StatusError


class PeerDialer:
    """Makes clients of other trainers."""

    def __init__(self, peers: PeersConfig, link: LinkConfig, *, insecure: bool) -> None:
        """insecure: whether other machines may be dialled in clear text.

        Raises ConfigError where they would be and must not, and for files that cannot be used.
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

    def check(self, address: str) -> None:
        """Refuse an address that the operator has not allowed. Raises StatusError."""
        if not is_allowed(address, self._allowed):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this trainer may not dial {address[:100]!r}: its operator has not allowed that address (peers.allowed)",
            )

    def client(self, address: str) -> TrainerClient:
        """A client of the trainer at an address that is allowed, not connected yet."""
        return TrainerClient(TrainerAddressConfig(address=address), self._link, access=self.access)

    def probe(self, address: str, ticket: str) -> ProbeCalls:
        """Calls that measure the link to the trainer at an address that is allowed."""
        return ProbeCalls(address, self.access, self._link, CALL_SECONDS, ticket)
