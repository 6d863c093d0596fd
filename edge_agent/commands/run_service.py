"""A run as a service: the service manager knows the state of its session, and SIGTERM ends it in order."""

import time
from collections.abc import Callable

from edge_agent.config import EdgeConfig
from edge_agent.run import result_writer, run_training
from edge_agent.sessions.resuming import Resume
from edge_agent.training.events import Prepared, Progressed
from edge_agent.training.result import TrainingResult
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from shared.commands.service_manager import ServiceManager
from shared.events import Events
from shared.events.calls import TrainersAwaited
from shared.telemetry.logs import bind_process_run


async def run_service(
    config: EdgeConfig,
    show: Callable[[Statistics], None],
    resume: Resume | None,
    resume_command: str = "edge-agent run --resume",
) -> TrainingResult:
    """`run_training` on the main thread of a process of its own, which leaves its result in output.directory.

    show: shows the user the progress. resume_command: the command that continues this run. Raises StoppedError when
    SIGTERM or SIGINT has ended it: at a step boundary and with a checkpoint, or at once while there is no step yet.
    """
    manager = ServiceManager()
    shutdown = Shutdown(resume_command)
    shutdown.listen()
    try:
        subscribe = _Shown(manager, show, config.upgrade.wait_seconds + BEGIN_SECONDS).subscribe
        return await run_training(config, subscribe, result_writer(config), resume=resume, shutdown=shutdown)
    finally:
        manager.stopping()


BEGIN_SECONDS = 300.0
"""Time for a session to open once the trainer answers, as the unit has it (TimeoutStartSec)."""
SHOWN_SECONDS = 0.1
"""Longest age of the shown figures while steps follow one another. Readers are no faster, and quick steps would be slowed."""


class _Shown:
    """Progress, as the user and the service manager see it."""

    def __init__(self, manager: ServiceManager, show: Callable[[Statistics], None], patience_seconds: float) -> None:
        """patience_seconds: the longest wait before the session is open."""
        self._manager = manager
        self._show = show
        self._patience_seconds = patience_seconds
        self._shown_seconds = float("-inf")
        self._is_ready = False

    def subscribe(self, events: Events) -> None:
        """Show progress from now on, and have every line of this process name the run."""
        events.subscribe(Prepared, lambda event: bind_process_run(event.run_id))
        events.subscribe(Progressed, self._show_progress)
        events.subscribe(TrainersAwaited, self._show_waiting)

    def _show_waiting(self, event: TrainersAwaited) -> None:
        """The start of the service may take as long as the run waits for an upgrade."""
        if event.reasons and not self._is_ready:
            self._manager.starting(f"waiting: {'; '.join(event.reasons)}", self._patience_seconds)

    def _show_progress(self, event: Progressed) -> None:
        """The service is ready with the first progress, when the session is open."""
        now, progress = time.monotonic(), event.statistics
        if progress.is_flowing and progress.steps < progress.total_steps and now < self._shown_seconds + SHOWN_SECONDS:
            return
        self._shown_seconds = now
        self._show(progress)
        if not self._is_ready:
            self._is_ready = True
            self._manager.ready()
        self._manager.status(status_line(progress))


def status_line(progress: Statistics) -> str:
    """Step, rate and the blocks of this device in one line."""
    here = f"{progress.edge_blocks} block{'' if progress.edge_blocks == 1 else 's'} here"
    line = f"step {progress.steps} of {progress.total_steps}, {progress.samples_per_second:.0f} samples/s, {here}"
    return line if progress.loss is None else f"{line}, loss {progress.loss:.4g}"
