"""The configuration of the cloud trainer: where it listens, what it may run and how much it takes on."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from shared.client.config import CA_ALLOWED, ClientTlsConfig
from shared.config import (
    MAX_CHUNK_BYTES,
    AddressPattern,
    CheckpointsConfig,
    ComputeConfig,
    Config,
    ControlConfig,
    FactoryName,
    GroupName,
    LinkConfig,
    ListenAddress,
    LogConfig,
    MetricsConfig,
    Section,
    WebConfig,
)

_HEADER_ROOM_BYTES = 1024 * 1024
_AllowedName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?$",
        json_schema_extra={"allowed": "package.module:factory, or a dotted package name"},
    ),
]


GROUPS_FOLDER = "-groups"
"""End of the name of the folder that has the checkpoints of a trainer's groups, after the name of its own folder."""
FolderName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        json_schema_extra={"allowed": "1 to 63 letters, digits, dots and dashes that begin with a letter or digit"},
    ),
]


class ServerConfig(Section):
    listen: ListenAddress = "127.0.0.1:50051"
    """Address at which edges reach this trainer."""
    health_listen: ListenAddress | None = Field(default=None, examples=["127.0.0.1:50052"])
    """A second address, where only the health service's Check answers, in clear text and for everybody. It is for the probe
    of a container, which has neither certificate nor token."""
    address_file: Path | None = Field(default=None, examples=["/run/cloud-trainer/address"])
    """File into which the trainer writes the address that it listens on, once it is ready. For port 0, and for scripts that
    wait."""
    max_sessions: PositiveInt = 8
    """Sessions at one time. Each holds its blocks of a network in memory. The trainer refuses any further session."""
    session_idle_seconds: PositiveFloat = 1800.0
    """Time for which the trainer keeps a session in memory that no call uses and no training stream is attached to,
    because an edge that died says nothing. It must be longer than what an edge does between two calls, such as
    measuring itself for a profile. An edge that comes back later, or after a new session has needed the place,
    continues from its newest checkpoint."""
    unattached_seconds: PositiveFloat = 60.0
    """Time for which the trainer keeps a session in memory that no call uses and no training stream was ever attached
    to. An upload counts as a call for as long as it lasts."""
    max_message_bytes: Annotated[int, Field(ge=MAX_CHUNK_BYTES + _HEADER_ROOM_BYTES)] = 8 * 1024 * 1024
    """Largest message taken from a peer. It cannot be set below the largest chunk that an edge may choose to send."""
    max_tensor_bytes: PositiveInt = 1024**3
    """Largest tensor that a peer may announce. Bounds what one message can make this process allocate, and what the metrics of
    an evaluation keep of its samples, which is at most a sixteenth of max_session_bytes, too."""
    max_staleness: NonNegativeInt = 64
    """Largest staleness (K) that an edge may ask for. Memory of a session grows with it."""
    max_session_bytes: PositiveInt = 16 * 1024**3
    """Memory that one session may take: weights, gradients, optimizer state, activations, what an evaluation takes instead
    of a step, and blocks on their way in and out. The trainer estimates it before it builds the model, and refuses a session
    that would take more."""
    max_session_modules: PositiveInt = 10_000
    """Modules (torch.nn.Module) that one session's model may be made of. Cutting and checking a model takes time for each."""
    max_build_seconds: PositiveFloat = 60.0
    """Longest time that a model's factory may take. The trainer ends and refuses one that takes longer."""
    max_sessions_per_subject: PositiveInt | None = Field(default=None, examples=[4])
    """Sessions of one subject (auth.tokens) at one time, so that nobody takes every place. Left out, only max_sessions
    bounds them."""
    max_calls_per_second: PositiveFloat = 100.0
    """Calls of one subject in the long run, or of one host where callers are not authenticated; ten seconds' worth may come at
    once. One training stream is one call, however long it lasts. The same number of calls of one host may fail to authenticate;
    after that the trainer looks at no call of that host until it has waited. Health checks are not counted."""
    max_calls_at_once: PositiveInt = 64
    """Calls of one subject or host that may be under way. Each holds one message at most, and a training stream its tensors."""
    max_recalled_bytes: PositiveInt = 16 * 1024**3
    """Disk that the features of one session's samples may take, where a device sends each once (deployment.recall): those of a
    whole data set, with the labels. They lie in the session's folder (checkpoints.location), so that has to be one of this
    machine. Where a device sends what has changed of them (deployment.changes), they take memory, which max_session_bytes
    bounds, too. The trainer refuses a session that would take more."""
    accept_inputs: bool = False
    """Lets sessions send this trainer what counts as raw samples, where the edge permits it too (privacy.inputs_to): also
    features off which samples can be read number by number, and gradients and replicas of blocks that compute on raw
    samples."""
    insecure: bool = False
    """Lets this trainer listen where other machines may reach it without encryption or without authentication, and dial
    trainers on other machines without encryption. For networks and tunnels that are trusted as a whole."""
    stop_seconds: PositiveFloat = 10.0
    """Time that edges have to end their batches and take a checkpoint when the trainer is told to stop."""


class ServerTlsConfig(Section):
    certificate: Path | None = Field(default=None, examples=["/etc/cloud-trainer/trainer.pem"])
    """This trainer's certificate in PEM, itself first and then its chain. Left out, nothing is encrypted. This file, the
    key and the ca are read again when they change; connections that are there stay."""
    key: Path | None = Field(default=None, examples=["/etc/cloud-trainer/trainer.key"])
    """Its private key in PEM, without a passphrase, closed to other users."""
    ca: Path | None = Field(default=None, examples=["/etc/cloud-trainer/ca.pem"])
    """Certificates that sign the clients' (mutual TLS). With it, a client without such a certificate cannot make a call;
    where auth.tokens is left out, the certificate's common name is the client's subject, with every scope."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together; set both or neither")
        if self.ca is not None and self.certificate is None:
            raise ValueError("ca asks clients for certificates, which needs TLS; set certificate and key too")
        return self


class PeerTlsConfig(ClientTlsConfig):
    ca: Path | None = Field(
        default=None, examples=["/etc/cloud-trainer/ca.pem"], json_schema_extra={"allowed": CA_ALLOWED}
    )
    """Certificates in PEM that sign the other trainers', or "system" for those that this system trusts. Left out, the public
    authorities that come with gRPC."""
    certificate: Path | None = Field(default=None, examples=["/etc/cloud-trainer/trainer.pem"])
    """This trainer's own certificate in PEM, for a trainer that asks for one (mutual TLS)."""
    key: Path | None = Field(default=None, examples=["/etc/cloud-trainer/trainer.key"])
    """Its private key in PEM, without a passphrase, closed to other users."""


class PeersConfig(Section):
    allowed: tuple[AddressPattern, ...] = ()
    """Other trainers that an agent may have this one dial, so that features, and blocks that move, go straight from trainer to
    trainer: each address as the agent writes it, or host:* for every port of a host. Left empty, this trainer dials nobody."""
    max_relays_per_subject: PositiveInt = 32
    """Connections of one subject (auth.tokens) to these trainers that may go through this one at one time, where an agent
    cannot reach them itself. A run takes two to four. Their bytes pass as they are, and each holds 512 KiB of the agent's and
    as much in the kernel."""
    tls: PeerTlsConfig = Field(default_factory=PeerTlsConfig)
    """Encryption of the connections to these trainers, and the proof of identity that they ask for. This trainer shows
    them tickets that it has from the agent, and no token."""


class AuthConfig(Section):
    tokens: Path | None = Field(default=None, examples=["/etc/cloud-trainer/tokens.toml"])
    """File of the tokens that callers must have, as `cloud-trainer token` writes it: hashes only. It is read again when it
    changes, so a token is withdrawn by deleting its table; the calls of a subject without a token end within a second. While
    it cannot be read, the trainer admits no new caller, and those who are there stay. Left out, no token is asked for."""


class ModelsConfig(Section):
    allowed: tuple[_AllowedName, ...] = ("shared.model.zoo",)
    """Names that peers may use for a model or a loss: package.module:factory allows that one; a package or module
    allows what it defines itself, and not what it imports. Peers may run what is allowed with arguments of their
    own."""


class TrainerCheckpointsConfig(CheckpointsConfig):
    location: str = Field(default="auto", examples=["s3://bucket/isthmus"])
    """Place of sessions and their checkpoints: a folder or a URL that fsspec knows (s3://, gs://; its driver must be
    installed). "auto" is the state directory of the service or of the user, "none" keeps nothing."""
    name: FolderName = Field(default="cloud-trainer", examples=["corner-7"])
    """Name of this trainer's own folder there, which no other trainer may use. Several trainers may have one location, under
    names that differ: each writes in its own folder alone, and reads the checkpoints of a run that others have written
    for the same subject, where the edge asks for it (checkpoints.replicas = "store")."""
    max_sessions_per_subject: PositiveInt = 64
    """Sessions of one subject (auth.tokens) that are stored, in memory or on disk. Sessions without a checkpoint give up their
    place first. After that the trainer refuses a further one until one is finished or closed (`cloud-trainer close`)."""
    max_bytes_per_subject: PositiveInt = 256 * 1024**3
    """Most bytes that the checkpoints of one subject may take. A checkpoint that would take more is not written, and
    its edge learns that."""
    forget_after_days: PositiveFloat = 30.0
    """Time for which the trainer keeps an unfinished session after the last write, by this machine's clock. Then it
    takes the session for abandoned and removes its folder; sessions in memory stay. The trainer looks when it starts,
    and every hour."""

    @model_validator(mode="after")
    def _the_folder_is_nobody_elses(self) -> Self:
        if self.name == "edge-agent" or self.name.endswith(GROUPS_FOLDER):
            raise ValueError(
                f"name is {self.name!r}, and edge-agent is an agent's folder, and one that ends with {GROUPS_FOLDER} that of "
                "groups; choose another one"
            )
        return self


class StandInConfig(Section):
    factory: FactoryName
    """Factory of the dataset: it returns something with a length whose items are (input, label), the input a
    tensor, a tuple of tensors, or tensors by name."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the factory."""


class GroupConfig(Section):
    name: GroupName
    """Name of the group, which its members give as `group.name`."""
    subjects: tuple[str, ...] = Field(default=(), examples=[["device-1", "device-2"]])
    """Subjects (auth.tokens) that may be members. Each member changes the weights of all, so name them. Left out, every
    caller that may train may be one."""
    size: PositiveInt
    """Members of the group at its first step: ranks 0 to size - 1. Each step waits for all members."""
    most: PositiveInt | None = Field(default=None, examples=[8])
    """Ranks that there can be: `size` to `most` - 1 may join while the group trains. Left out, it is `size`."""
    leave_out_seconds: PositiveFloat | None = None
    """Time after the first gradient of a block, or of a slice of a large one, in a step for which that waits for those of other
    members. Then it is updated without them, and no member can have `training.early_stop`. Left out, it waits for all."""
    longest_wait_seconds: PositiveFloat = 3600.0
    """Longest time for which a step waits for a member that is linked and gives nothing, as one that hangs, while others are
    waiting. Then its session ends, and the group goes on without it until it begins again. It must be longer than a member
    evaluates or an operator has it pause, which look the same from here."""
    checkpoint_steps: PositiveInt = 100
    """Steps between checkpoints of the group's weights and optimizer, which lie here alone."""

    @property
    def ranks(self) -> range:
        """All ranks that there can be."""
        return range(self.size if self.most is None else self.most)

    def admits(self, subject: str) -> bool:
        """Tell whether a subject may be a member."""
        return not self.subjects or subject in self.subjects

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.most is not None and self.most < self.size:
            raise ValueError(f"most is {self.most} and size {self.size}; most must be {self.size} or more")
        return self


class CalibrationConfig(Section):
    train: StandInConfig | None = Field(
        default=None, examples=[{"factory": "edge_agent.data:fashion_mnist", "kwargs": {"split": "train"}}]
    )
    """Samples on which copies of edges' models are trained for `edge-agent profile --calibrate --on trainer`: a public data
    set like the edges' own. Left out, such a calibration is refused."""
    test: StandInConfig | None = Field(
        default=None, examples=[{"factory": "edge_agent.data:fashion_mnist", "kwargs": {"split": "test"}}]
    )
    """Samples on which the copies are compared. None of them may be in train."""
    max_epochs: PositiveFloat = 10.0
    """Longest training of one copy that an edge may ask for."""
    max_seconds: PositiveFloat = 3600.0
    """Longest time that one copy may take; then its process is ended. One copy is trained at a time, in a process of its own
    beside the sessions."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.train is None) != (self.test is None):
            raise ValueError("train and test belong together; set both or neither")
        if self.train is not None and self.train == self.test:
            raise ValueError("train and test are the same; copies must be compared on samples that they have not seen")
        return self


class TrainerConfig(Config):
    environment_prefix: ClassVar[str] = "CLOUD_TRAINER_"

    server: ServerConfig = Field(default_factory=ServerConfig)
    """The port for edges, and the amount of work that the trainer accepts."""
    tls: ServerTlsConfig = Field(default_factory=ServerTlsConfig)
    """Encryption of the port, and the authority for clients' certificates."""
    auth: AuthConfig = Field(default_factory=AuthConfig)
    """Callers that are admitted."""
    peers: PeersConfig = Field(default_factory=PeersConfig)
    """Other trainers that may be dialled."""
    models: ModelsConfig = Field(default_factory=ModelsConfig)
    """Networks that may be run here."""
    groups: tuple[GroupConfig, ...] = Field(default=(), examples=[[{"name": "line", "size": 4}]])
    """Groups of devices that train one model here, each a table `[[groups]]`: `name`, and `size`, its members, for all of
    which each step waits; if wanted `subjects` (of auth.tokens), which alone may be members, `checkpoint_steps`, the steps
    between checkpoints, 100 if left out, `leave_out_seconds`, after which a block or a slice goes on without the gradients
    of late members, and `longest_wait_seconds`, after which one that is linked and gives nothing is left out, 3600 if left
    out. Each member changes the weights of all, so name the subjects."""
    calibration: CalibrationConfig = Field(default_factory=CalibrationConfig)
    """Samples on which edges may have copies of their models trained here."""
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    """The device for computing."""
    link: LinkConfig = Field(default_factory=LinkConfig)
    """The way in which tensors are sent."""
    checkpoints: TrainerCheckpointsConfig = Field(default_factory=TrainerCheckpointsConfig)
    """State that outlives this process."""
    control: ControlConfig = Field(default_factory=ControlConfig)
    """Address at which this trainer is watched and steered, besides server.listen."""
    web: WebConfig = Field(default_factory=WebConfig)
    """Page in a browser on which it is watched and steered, too."""
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    """Figures that can be watched from outside."""
    log: LogConfig = Field(default_factory=LogConfig)
    """Lines on standard error."""

    @model_validator(mode="after")
    def _groups_differ(self) -> Self:
        names = [group.name for group in self.groups]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"groups: two are named {twice[0]!r}; give each a name of its own")
        return self
