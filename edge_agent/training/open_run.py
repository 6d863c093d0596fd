"""What an operator, metrics and the decision engine see of a run that has its session open."""

from typing import Protocol

from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import CheckpointName
from shared.model.chain import Chain
from shared.placement import Deployment, Placement


class _Experiment(Protocol):
    @property
    def chain(self) -> Chain:
        """The whole model."""


class _Session(Protocol):
    @property
    def stored(self) -> StoredSession:
        """What outlives the process."""

    @property
    def experiment(self) -> _Experiment:
        """What is trained."""

    async def max_staleness(self) -> int:
        """The largest K that the trainers allow."""


class _Checkpointer(Protocol):
    shared_at: float | None

    @property
    def keeps(self) -> bool:
        """Whether there is a folder to keep checkpoints in."""

    async def order(self) -> CheckpointName:
        """Have one taken, and wait until it is shared."""


class Deploys(Protocol):
    """Changes the deployment of a running session."""

    @property
    def deployment(self) -> Deployment:
        """What the next batch is started under."""

    @property
    def placement(self) -> Placement:
        """The same, as what all workers run."""

    @property
    def has_cut(self) -> bool:
        """Whether two workers train on one cut, which can be moved."""

    @property
    def moving(self) -> bool:
        """Whether blocks were asked to move, and have neither moved nor been given up."""

    @property
    def wanted_edge_blocks(self) -> int | None:
        """How many blocks will be here once those that move have moved; None where none do."""

    async def back(self) -> list[str]:
        """The trainers that the run goes on without, and that answer again."""

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs. Raises ConfigError for a codec that is not there."""

    def place(self, document: object) -> Placement:
        """Have every worker run what a decoded document says. Raises ConfigError or DataError for one that may not be."""

    async def placed(self, document: object) -> Placement:
        """The same, and wait until it is in force. Raises StoppedError or RefusedError where it does not come into force."""

    def move_cuts(self, cuts: tuple[int, ...], feature_codecs: tuple[str, ...] | None = None) -> None:
        """Move the cuts of a chain, and change the codec of the features of each link where given.

        Raises ConfigError where there is no chain or it cannot be cut so, DataError for labels that may not go.
        """

    def move(self, cut: int, give_up_seconds: float | None = None) -> None:
        """Move the cut once the batches in flight are settled.

        Raises ModelError for a cut out of range, ConfigError where there is no one cut, DataError for labels that may not go.
        """


class InFlight(Protocol):
    """What is under way."""

    @property
    def in_flight(self) -> int:
        """Batches that are under way."""

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that wait, by queue."""

    @property
    def attached(self) -> bool:
        """Whether every stream to a trainer is up."""


class OpenRun(InFlight, Protocol):
    """A run that has its session open."""

    @property
    def session(self) -> _Session:
        """The session."""

    @property
    def deployer(self) -> Deploys:
        """What changes its deployment."""

    @property
    def checkpointer(self) -> _Checkpointer:
        """Its checkpoints."""
