"""One of the runs that `make demo-engine` compares: `python -m deploy.demo.racer FILE FLAG...`.

It writes a line as soon as it could begin, begins when it reads one, and writes a line for every step.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Progressed, SessionOpened
from isthmus import EdgeConfig, Statistics, run_training
from shared.config import load_config
from shared.events import Events
from shared.telemetry.logs import configure_logs


class _Telling:
    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._steps = 0
        self._deployer: Deployer | None = None

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(SessionOpened, self._wait)
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _wait(self, event: SessionOpened) -> None:
        """Wait until all may begin."""
        self._deployer = event.run.deployer
        self._write("ready\n")
        sys.stdin.readline()

    def _note(self, progress: Statistics) -> None:
        """Tell of a step: the seconds of the machine's clock, how many are done, the loss, and the blocks on the device."""
        if progress.steps == self._steps or self._deployer is None:
            return
        self._steps = progress.steps
        told = [time.monotonic(), progress.steps, progress.loss, self._deployer.deployment.edge_blocks]
        self._write(json.dumps(told) + "\n")


def main() -> None:
    """Train; standard output has the lines, and whatever else prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as told, contextlib.redirect_stdout(sys.stderr):
        config = load_config(EdgeConfig, Path(sys.argv[1]), sys.argv[2:], environ={})
        configure_logs(config.log.level, config.log.format)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run_training(config, _Telling(told.write).subscribe))


if __name__ == "__main__":
    main()
