"""The run that an operator sees and steers, whichever it is: one may begin again where nothing was kept of the one before."""

import asyncio
import time
from collections.abc import Mapping

from edge_agent.adaptation.candidates.choice import TrainerChoice
from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.config import EdgeConfig
from edge_agent.control.pins import Pinning
from edge_agent.training.events import Activity, HandedOver
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_boundary import Pause
from edge_agent.training.training_run import TrainingRun
from shared.checkpoint import LocalFiles


class ControlState:
    """Used on the event loop."""

    def __init__(
        self,
        config: EdgeConfig,
        statistics: Statistics,
        shutdown: Shutdown,
        pause: Pause,
        pinning: Pinning,
        folder: LocalFiles | None,
    ) -> None:
        """folder: where this agent keeps its sessions."""
        self.config = config
        self.statistics = statistics
        self.shutdown = shutdown
        self.pause = pause
        self.pinning = pinning
        self.folder = folder
        self.run: TrainingRun | None = None
        """None until there is one with an open session."""
        self.decisions: DecisionLoop | None = None
        """The decisions of the run's engine; None without one."""
        self.choice: TrainerChoice | None = None
        """The choice among several trainers; None without one."""
        self.ended = asyncio.Event()
        """Set when nothing more comes."""
        self._began_seconds = time.monotonic()

    async def begin(self, run: TrainingRun, decisions: DecisionLoop | None, choice: TrainerChoice | None) -> None:
        """Control this run from now on. Earlier pins hold in it too."""
        self.run = run
        self.decisions = decisions
        self.choice = choice
        await self.pinning.begin(run.deployer, decisions)

    def note_handover(self, event: HandedOver) -> None:
        """Have the choice learn how long a handover took."""
        if self.choice is not None:
            self.choice.note_pause(event.pause_seconds)

    @property
    def ranking(self) -> Mapping[str, float]:
        """Return the seconds of a step with each candidate, the fastest first; nothing where none is chosen."""
        return {} if self.choice is None else self.choice.ranking

    def leave(self) -> None:
        """The run has ended; another may begin."""
        self.run = None

    def end(self) -> None:
        """Nothing more comes."""
        self.pause.release()
        self.ended.set()

    @property
    def activity(self) -> Activity:
        """Return the current activity of the run."""
        if self.ended.is_set():
            return Activity.ENDED
        if self.shutdown.requested:
            return Activity.STOPPING
        return Activity.AWAY if self.statistics.waits_because else self.statistics.activity

    @property
    def running_seconds(self) -> float:
        """Return the seconds that processes have had the run: this one, and those before until the checkpoint that it
        goes on from."""
        return self.statistics.earlier_seconds + time.monotonic() - self._began_seconds
