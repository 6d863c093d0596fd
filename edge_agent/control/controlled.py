"""The run that an operator sees and steers, whichever it is: one may begin anew where nothing was kept of the one before."""

import asyncio
import time

from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.config import EdgeConfig
from edge_agent.control.pins import Pinning
from edge_agent.experiment.building import Experiment
from edge_agent.observability.activity import Activity
from edge_agent.observability.observer import RunObserver
from edge_agent.training.loop import TrainingRun
from edge_agent.training.pause import Pause
from edge_agent.training.shutdown import Shutdown
from shared.checkpoint import LocalFiles


class Controlled:
    """Used on the event loop."""

    def __init__(
        self, config: EdgeConfig, observer: RunObserver, shutdown: Shutdown, folder: LocalFiles | None
    ) -> None:
        """folder: where this agent keeps its sessions."""
        self.config = config
        self.observer = observer
        self.shutdown = shutdown
        self.folder = folder
        self.pause = Pause()
        self.pinning = Pinning(config.deployment)
        self.run: TrainingRun | None = None
        """None until there is one."""
        self.decisions: DecisionLoop | None = None
        """None where nobody changes the deployment by himself."""
        self.changed = asyncio.Event()
        """Set when the activity has changed; whoever waits for it clears it."""
        self.ended = asyncio.Event()
        """Set when nothing more comes."""
        self._began_seconds = time.monotonic()
        observer.on_went_back = self.pinning.enforce

    def begin(self, experiment: Experiment, run: TrainingRun, decisions: DecisionLoop | None) -> None:
        """This run is it from now on; what was pinned is pinned in it too."""
        self.run, self.decisions = run, decisions
        self.pinning.begin(experiment.chain, run.deployer, decisions)

    def end(self) -> None:
        """Nothing more comes."""
        self.pause.release()
        self.ended.set()

    @property
    def activity(self) -> Activity:
        """What the run is doing."""
        if self.ended.is_set():
            return Activity.ENDED
        return Activity.OPENING if self.run is None else self.run.activity

    @property
    def running_seconds(self) -> float:
        """How long this process has had the run."""
        return time.monotonic() - self._began_seconds
