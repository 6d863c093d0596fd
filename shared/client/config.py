"""The configuration of the trainers that are dialled, and of how both ends know each other."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, SecretStr, model_validator

from shared.bounds import AGENT
from shared.config import PeerAddress, Section

_NOT_TRAINERS = (AGENT, "labels", "file")
"""Names that [placement] uses for something else."""
_PROXY = r"^(none|http://(\[[0-9a-fA-F:.]+\]|[^\s/@:\[\]]+)(:[0-9]{1,5})?)$"
SYSTEM = Path("system")
"""The authorities of the system, in `tls.ca`."""
CA_ALLOWED = 'a path, or "system"'
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in _NOT_TRAINERS:
        raise ValueError("not a name")
    return name


TrainerName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(
        json_schema_extra={
            "allowed": f"1 to 63 letters, digits, - and _, and none of {', '.join(_NOT_TRAINERS)}, which mean something else"
        }
    ),
]


class TrainerAddressConfig(Section):
    name: TrainerName = "trainer"
    """Name of the trainer in a placement or a permission."""
    address: PeerAddress = "127.0.0.1:50051"
    """Address at which the cloud trainer listens."""
    proxy: Annotated[str, Field(pattern=_PROXY)] | None = Field(
        default=None,
        examples=["http://proxy.example.org:3128"],
        json_schema_extra={"allowed": "http://host:port without user and password, or none"},
    )
    """HTTP proxy through which the trainer is dialled, unless no_proxy lists its host, or "none". Left out, it is that of
    grpc_proxy, https_proxy or http_proxy, which may have credentials. To a trainer on this machine there is none."""
    connect_timeout_seconds: PositiveFloat = 20.0
    """Longest wait for the first answer, retries included, before giving up."""
    call_timeout_seconds: PositiveFloat = 300.0
    """Longest time that the trainer may leave a call unanswered, or a transfer without progress. Above what it needs to
    build the network."""
    give_up_seconds: NonNegativeFloat | None = Field(default=None, examples=[3600.0])
    """Time for which the agent tries to reach a trainer that it lost while training, before the run ends. Left out, without
    end, but for a trainer that answers and does nothing: call_timeout_seconds."""

    replace_after_seconds: PositiveFloat | None = Field(default=None, examples=[300.0])
    """Time for which the trainer may be away in the middle of a run before the run continues without it, from the
    newest checkpoint. Others have its blocks then, from the replicas of them. It needs checkpoints.replicas. Left out,
    the run waits."""

    no_step_seconds: PositiveFloat = 60.0
    """Shortest time without a step, a piece of work or a byte after which the trainer counts as away although it answers, as
    one does whose GPU hangs. A step may also take ten times as long as those before it, and the first one after the
    trainers were joined or the placement has changed `call_timeout_seconds`."""

    stand_in_after_seconds: PositiveFloat = 1.0
    """Time for which the trainer may be away before another configured one, which may have as much, stands in for it. That is
    for a trainer that owns no block which training changes, so that no worker has to go back."""

    token: SecretStr | None = Field(default=None, examples=["the-token-itself"])
    """The trainer knows the agent by this token. Set it by EDGE_AGENT_TRAINER__TOKEN rather than in a file or as a flag, which
    others may read. It is never logged or printed."""
    token_file: Path | None = Field(default=None, examples=["/etc/edge-agent/token"])
    """File that holds the token and nothing else, closed to other users. It is read at every call, so that a new token
    needs no restart. `token` takes precedence."""
    insecure: bool = False
    """Lets the token go to another machine without encryption. For networks and tunnels that are trusted as a whole."""


class NamedTrainerConfig(TrainerAddressConfig):
    name: TrainerName
    """Name of the trainer in a placement or a permission; each trainer has a name of its own."""
    address: PeerAddress
    """Address at which this trainer listens."""


class ClientTlsConfig(Section):
    enabled: bool = False
    """Encrypts the connection and makes the trainer prove its identity. Any other key of this section enables it too."""
    ca: Path | None = Field(
        default=None, examples=["/etc/edge-agent/ca.pem"], json_schema_extra={"allowed": CA_ALLOWED}
    )
    """Certificates in PEM that sign the trainer's, or "system" for those that this system trusts. Left out, the public
    authorities that come with gRPC."""
    certificate: Path | None = Field(default=None, examples=["/etc/edge-agent/edge.pem"])
    """This side's own certificate in PEM, for a trainer that asks for one (mutual TLS)."""
    key: Path | None = Field(default=None, examples=["/etc/edge-agent/edge.key"])
    """Its private key in PEM, without a passphrase, closed to other users."""
    server_name: str | None = Field(default=None, examples=["trainer.example.org"])
    """The name that the trainer's certificate must have, where it is not the host of the trainer's address, for example
    behind a tunnel."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together; set both or neither")
        return self

    @property
    def used(self) -> bool:
        """Tell whether the connection uses TLS."""
        return self.enabled or (self.ca or self.certificate or self.server_name) is not None
