"""The configuration of the cloud trainer: where it listens, what it may run and how much it takes on."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from shared.config import (
    MAX_CHUNK_BYTES,
    ComputeConfig,
    Config,
    LinkConfig,
    ListenAddress,
    LogConfig,
    MetricsConfig,
    Section,
)

_HEADER_ROOM_BYTES = 64 * 1024
_DottedName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", json_schema_extra={"allowed": "a dotted module name"}),
]


class ServerConfig(Section):
    listen: ListenAddress = "127.0.0.1:50051"
    """Where edges reach this trainer."""
    address_file: Path | None = Field(default=None, examples=["/run/cloud-trainer/address"])
    """Where the address that is really listened on is written, once ready. For port 0, and for scripts that wait."""
    max_sessions: PositiveInt = 8
    """Sessions at one time. Each holds its half of a network in memory; one more is refused."""
    max_message_bytes: Annotated[int, Field(ge=MAX_CHUNK_BYTES + _HEADER_ROOM_BYTES)] = 8 * 1024 * 1024
    """Largest message taken from a peer. The bound lets every chunk through that an edge may choose to send."""
    max_tensor_bytes: PositiveInt = 1024**3
    """Largest tensor that a peer may announce. Bounds what one message can make this process allocate."""
    max_staleness: NonNegativeInt = 64
    """Largest staleness (K) that an edge may ask for. Memory of a session grows with it."""


class ModelsConfig(Section):
    allowed: tuple[_DottedName, ...] = ("shared.model.zoo",)
    """Module prefixes of the factories that peers may name. To allow one is to let peers run its code."""


class TrainerConfig(Config):
    environment_prefix: ClassVar[str] = "CLOUD_TRAINER_"

    server: ServerConfig = ServerConfig()
    """Where edges come in, and how much is taken on."""
    models: ModelsConfig = ModelsConfig()
    """Which networks may be run here."""
    compute: ComputeConfig = ComputeConfig()
    """What this side computes with."""
    link: LinkConfig = LinkConfig()
    """How tensors are sent."""
    metrics: MetricsConfig = MetricsConfig()
    """What can be watched from outside."""
    log: LogConfig = LogConfig()
    """What is written to standard error."""
