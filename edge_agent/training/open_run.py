"""An open run, as an operator, metrics and the decision engine see it."""

from typing import Protocol

from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import CheckpointName
from shared.model.chain import Chain
from shared.placement import Deployment, Placement


class _Experiment(Protocol):
    @property
    def chain(self) -> Chain:
        """Return the whole model."""


class _Session(Protocol):
    @property
    def stored(self) -> StoredSession:
        """Return the state that outlives the process."""

    @property
    def experiment(self) -> _Experiment:
        """Return the experiment that is trained."""

    async def max_staleness(self) -> int:
        """Return the largest K that the trainers allow."""


class _Checkpointer(Protocol):
    shared_at: float | None

    @property
    def keeps(self) -> bool:
        """Tell whether there is a folder for checkpoints."""

    async def order(self) -> CheckpointName:
        """Have one taken, and wait until it is shared."""


class Deploys(Protocol):
    """A changer of a running session's deployment."""

    @property
    def deployment(self) -> Deployment:
        """Return the deployment of the next batch."""

    @property
    def placement(self) -> Placement:
        """Return the placement of the next batch."""

    @property
    def has_cut(self) -> bool:
        """Tell whether two workers train on one cut, which can be moved."""

    @property
    def moving(self) -> bool:
        """Tell whether a move of blocks was requested, and is neither done nor given up."""

    @property
    def wanted_edge_blocks(self) -> int | None:
        """Return the number of blocks here after the moves that are under way; None without any."""

    async def back(self) -> list[str]:
        """List the trainers that the run continues without, and that answer again."""

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs. Raises ConfigError for an unknown codec."""

    def place(self, document: object) -> Placement:
        """Request the placement of a decoded document. Raises ConfigError or DataError for a forbidden one."""

    async def placed(self, document: object) -> Placement:
        """Request the same, and wait until it is in force. Raises StoppedError or RefusedError if it does not come into
        force."""

    def move_cuts(self, cuts: tuple[int, ...], feature_codecs: tuple[str, ...] | None = None) -> None:
        """Move the cuts of a chain, and change the codec of each link's features if given.

        Raises ConfigError if there is no chain or it cannot have these cuts, DataError for labels that may not leave.
        """

    def move(self, cut: int, give_up_seconds: float | None = None) -> None:
        """Move the cut once the batches in flight are settled.

        Raises ModelError for a cut out of range, ConfigError if there is no single cut, DataError for labels that may
        not leave.
        """


class InFlight(Protocol):
    """The batches and tensors under way."""

    @property
    def in_flight(self) -> int:
        """Return the number of batches under way."""

    @property
    def waiting(self) -> dict[str, int]:
        """Return the numbers of waiting batches, by queue."""

    @property
    def attached(self) -> bool:
        """Tell whether every stream to a trainer is up."""


class OpenRun(InFlight, Protocol):
    """A run that has its session open."""

    @property
    def session(self) -> _Session:
        """Return the session."""

    @property
    def deployer(self) -> Deploys:
        """Return the changer of its deployment."""

    @property
    def checkpointer(self) -> _Checkpointer:
        """Return its checkpoints."""
