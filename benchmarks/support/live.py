"""An agent whose steps are seen as they are done: `python -m benchmarks.support.live FLAG...`, driven by `LiveRun`.

For runs that are measured while something happens to them, and that end when enough was seen.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Progressed, SessionOpened
from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.errors import IsthmusError
from shared.events import Events
from shared.placement import Cargo, Placement, Route, chain_workers, cuts_of
from shared.telemetry.logs import configure_logs

PATIENCE_SECONDS, END_SECONDS = 120.0, 20.0


class Layout(NamedTuple):
    """The layout of a chain: its cuts and codecs."""

    workers: tuple[str, ...]
    cuts: tuple[int, ...]
    codecs: tuple[str, ...]
    """Codecs of the features, by link."""


class Moment(NamedTuple):
    """A step was done."""

    seconds: float
    """By the machine's monotonic clock, which all processes share."""
    steps: int
    """Done by then."""
    layout: Layout
    """In force, or wanted."""


class LiveRun:
    """A running agent, from outside. Nothing happens to it by itself: end it with `stop`."""

    def __init__(
        self, flags: Sequence[str], wrapper: Sequence[str] = (), module: str = "benchmarks.support.live"
    ) -> None:
        """flags: section.key=value. wrapper: a command to run it under. module: the agent, which ends with the `main` here."""
        self.moments: list[Moment] = []
        """Moments of each step so far."""
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", module, *flags], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, until: Callable[[Sequence[Moment]], bool], seconds: float = PATIENCE_SECONDS) -> list[Moment]:
        """The moments so far, once `until` holds of them or `seconds` are over. Raises IsthmusError if the agent has ended."""
        with self._news:
            self._news.wait_for(lambda: not self._reader.is_alive() or until(self.moments), seconds)
            if self._process.poll() is not None:
                raise IsthmusError(f"the agent ended with {self._process.returncode}; what it wrote stands above")
            return list(self.moments)

    def steps(self, count: int, seconds: float = PATIENCE_SECONDS) -> list[Moment]:
        """The moments so far, once so many steps more are done. Raises IsthmusError where they are not in time."""
        wanted = len(self.moments) + count
        moments = self.wait(lambda seen: len(seen) >= wanted, seconds)
        if len(moments) < wanted:
            raise IsthmusError(f"{wanted - len(moments)} of {count} steps were not done within {seconds:g} s")
        return moments

    def watch(self, seconds: float) -> list[Moment]:
        """The moments so far, after so many seconds."""
        return self.wait(lambda _: False, seconds)

    def stop(self) -> None:
        """End it, and its session with it."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            seconds, steps, layout = json.loads(line)
            with self._news:
                self.moments.append(Moment(seconds, steps, Layout(*map(tuple, layout))))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


class _Telling:
    """Writes a line for every step."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._steps = 0
        self._deployer: Deployer | None = None

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(SessionOpened, self._keep_deployer)
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _keep_deployer(self, event: SessionOpened) -> None:
        self._deployer = event.run.deployer

    def _note(self, progress: Statistics) -> None:
        if progress.steps == self._steps or self._deployer is None:
            return
        self._steps = progress.steps
        self._write(json.dumps([time.monotonic(), progress.steps, layout_of(self._deployer.placement)]) + "\n")


def layout_of(placement: Placement) -> Layout:
    """Return the layout of a placement as a chain; an empty one where it is no chain."""
    workers, cuts = chain_workers(placement) or (), cuts_of(placement) or ()
    codecs = tuple(placement.codecs[Route(*hop, Cargo.FEATURE)] for hop in pairwise(workers))
    return Layout(workers, cuts, codecs)


def main() -> None:
    """Train; standard output has the steps, and whatever else prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as told, contextlib.redirect_stdout(sys.stderr):
        config = load_config(EdgeConfig, None, sys.argv[1:], environ={})
        configure_logs(config.log.level, config.log.format)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run_training(config, _Telling(told.write).subscribe))


if __name__ == "__main__":
    main()
