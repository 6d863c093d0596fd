"""The state that all workers of a session have in common: the placement in force, since which checkpoint, for which agent."""

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.stored_session import StoredSession
from shared.placement import Placement, PlacementPlan
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class SessionState:
    """What this device knows of its session, whoever takes part in it. Used on the event loop."""

    def __init__(
        self,
        stored: StoredSession,
        experiment: Experiment,
        threads: Workers,
        plan: PlacementPlan,
        step_log: StepLog | None = None,
    ) -> None:
        """plan: of the placement that is in force first."""
        self.stored = stored
        self.experiment = experiment
        self.threads = threads
        self.step_log = step_log
        self.plan = plan
        """What is in force, with all that follows from it."""
        self.lineage = 0
        """The term in which all workers last went back to a checkpoint; 0 before the first time."""
        self._term_is_unused = False

    @property
    def placement(self) -> Placement:
        """What is in force."""
        return self.plan.placement

    @property
    def fence(self) -> pb.Fence:
        """What proves that this agent has the session."""
        return pb.Fence(session_term=self.stored.session_term)

    @property
    def first_step(self) -> int:
        """The step that training goes on with, as far as this device knows before it has joined."""
        return 0 if self.stored.shared is None else self.stored.shared.step

    async def plan_of(self, placement: Placement) -> PlacementPlan:
        """A valid placement with all that follows from it, worked out beside the event loop."""
        return await self.threads.compute.run(PlacementPlan.of, placement, self.experiment.facts)

    async def begin_term(self) -> None:
        """Begin another term, on disk first, unless the last one was not used. Raises StorageError."""
        if not self._term_is_unused:
            await self.threads.disk.run(self.stored.next_term)
        self._term_is_unused = False

    def save_term(self) -> None:
        """Use this term for the next attempt: no trainer has taken it."""
        self._term_is_unused = True
