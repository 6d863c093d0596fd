"""The common state of a session's workers: the placement in force, its checkpoint, and its agent."""

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.stored_session import StoredSession
from shared.placement import Placement, PlacementPlan
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class SessionState:
    """A device's knowledge of its session, whichever workers take part. Used on the event loop."""

    def __init__(
        self,
        stored: StoredSession,
        experiment: Experiment,
        threads: AgentThreads,
        plan: PlacementPlan,
        step_log: StepLog | None = None,
    ) -> None:
        """plan: of the placement that is in force first."""
        self.stored = stored
        self.experiment = experiment
        self.threads = threads
        self.step_log = step_log
        self.plan = plan
        """Placement in force, with all its consequences."""
        self.lineage = 0
        """Term in which all workers last went back to a checkpoint; 0 before the first time."""
        self._term_is_unused = False

    @property
    def placement(self) -> Placement:
        """Return the placement in force."""
        return self.plan.placement

    @property
    def fence(self) -> pb.Fence:
        """Return the proof that this agent has the session."""
        return pb.Fence(session_term=self.stored.session_term)

    @property
    def first_step(self) -> int:
        """Return the step at which training continues, as far as this device knows before it has joined."""
        return 0 if self.stored.shared is None else self.stored.shared.step

    async def plan_of(self, placement: Placement) -> PlacementPlan:
        """Compute the plan of a valid placement, beside the event loop."""
        return await self.threads.compute.run(PlacementPlan.of, placement, self.experiment.facts)

    async def begin_term(self, above: int = 0) -> None:
        """Begin a term above this one, on disk first, unless the last one was not used. Raises StorageError."""
        if above or not self._term_is_unused:
            await self.threads.disk.run(self.stored.next_term, above)
        self._term_is_unused = False

    def save_term(self) -> None:
        """Use this term for the next attempt: no trainer has seen it."""
        self._term_is_unused = True
