"""An open run, as an operator, metrics and the decision engine see it."""

from typing import Protocol

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.sessions.membership import Membership
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.choosers import Chooser
from shared.checkpoint import CheckpointName
from shared.placement import Deployment, Placement


class OpenedSession(Protocol):
    """The session of an open run."""

    @property
    def threads(self) -> AgentThreads:
        """Return the threads of the agent."""

    @property
    def stored(self) -> StoredSession:
        """Return the state that outlives the process."""

    @property
    def experiment(self) -> Experiment:
        """Return the experiment that is trained."""

    @property
    def members(self) -> Membership:
        """Return its trainers."""

    @property
    def placement(self) -> Placement:
        """Return the placement in force."""

    async def max_staleness(self) -> int:
        """Return the largest K that the trainers allow."""


class _Checkpointer(Protocol):
    shared_at: float | None
    lacks_replicas: str

    @property
    def keeps(self) -> bool:
        """Tell whether there is a folder for checkpoints."""

    async def order(self) -> CheckpointName:
        """Have one taken, and wait until it is shared."""


class PlacementController(Protocol):
    """A changer of a running session's placement."""

    pinned_trainer: str | None

    @property
    def experiment(self) -> Experiment:
        """Return the experiment that is trained, which makes the placements that may be wanted."""

    @property
    def deployment(self) -> Deployment:
        """Return the deployment of the next batch."""

    @property
    def placement(self) -> Placement:
        """Return the placement of the next batch."""

    @property
    def moving(self) -> bool:
        """Tell whether a move of blocks was requested, and is neither done nor given up."""

    @property
    def wanted_edge_blocks(self) -> int | None:
        """Return the number of blocks here after the moves that are under way; None without any."""

    @property
    def chosen_by(self) -> Chooser:
        """Return the chooser of the placement in force."""

    @property
    def refusal(self) -> str:
        """Return why the last request was given up: a sentence; empty once another one has come into force."""

    def want(self, placement: Placement, by: Chooser, give_up_seconds: float | None = None) -> bool:
        """Request a placement of `experiment`, in force once the batches in flight are settled.

        Returns False, and changes nothing, where a request of a higher chooser stands, or a worker has just refused this one.
        """

    async def in_force(self) -> Placement:
        """Wait until the requested placement is in force. Raises StoppedError or RefusedError if that does not happen."""


class InFlight(Protocol):
    """The batches and tensors under way."""

    @property
    def in_flight(self) -> int:
        """Return the number of batches under way."""

    @property
    def waiting(self) -> dict[str, int]:
        """Return the numbers of waiting items for links (`send`) and of steps with waiting loads (`arrived`)."""

    @property
    def attached(self) -> bool:
        """Tell whether every stream to a trainer is up."""


class OpenRun(InFlight, Protocol):
    """A run that has its session open."""

    @property
    def session(self) -> OpenedSession:
        """Return the session."""

    @property
    def deployer(self) -> PlacementController:
        """Return the changer of its placement."""

    @property
    def checkpointer(self) -> _Checkpointer:
        """Return its checkpoints."""
