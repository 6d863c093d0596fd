"""A run as a service: the service manager knows when its session is open and what it does, and SIGTERM ends it in order."""

import time
from collections.abc import Callable

from edge_agent.config import EdgeConfig
from edge_agent.run import run_training
from edge_agent.sessions.resuming import Resume
from edge_agent.training.result import TrainingResult
from edge_agent.training.shutdown import Shutdown
from edge_agent.training.statistics import Statistics
from shared.commands.service_manager import ServiceManager


async def run_service(
    config: EdgeConfig,
    on_progress: Callable[[Statistics], None],
    on_result: Callable[[TrainingResult], object],
    resume: Resume | None,
    resume_command: str = "edge-agent run --resume",
) -> TrainingResult:
    """`run_training` on the main thread of a process of its own.

    resume_command: what goes on with this run. Raises StoppedError when SIGTERM or SIGINT has ended it: at a step boundary
    and with a checkpoint, or at once while there is no step yet.
    """
    manager = ServiceManager()
    started_seconds = time.monotonic()
    opened = False

    def tell(progress: Statistics) -> None:
        nonlocal opened
        on_progress(progress)
        if not opened:
            opened = True
            manager.ready()
        manager.status(status_line(progress, time.monotonic() - started_seconds))

    shutdown = Shutdown(resume_command)
    shutdown.listen()
    try:
        return await run_training(config, tell, on_result=on_result, resume=resume, shutdown=shutdown)
    finally:
        manager.stopping()


def status_line(progress: Statistics, seconds: float) -> str:
    """Step, rate and cut in one line. seconds: since the run began."""
    rate = progress.samples / seconds if seconds > 0 else 0.0
    line = f"step {progress.steps} of {progress.total_steps}, {rate:.0f} samples/s, cut {progress.cut}"
    return line if progress.steps == 0 else f"{line}, loss {progress.loss:.4g}"
