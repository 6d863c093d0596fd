"""`make demo-chain`: an agent and two trainers, three real processes on loopback, train one model as a chain.

The chain is profiled and planned, and trained under that plan. Then the machine of the middle worker becomes slow: its process
stands still for most of the time, and the engine moves blocks away from it. What the moves gained is said in the end, and drawn
in run/demo-chain where matplotlib is installed. Nothing is left running, whatever ends it.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path

from pace import Pace
from rich.console import Console
from run_picture import Moment, Run, draw_run

from edge_agent.commands.terminal import summary_table
from edge_agent.demo import processes
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Progressed, SessionOpened
from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.errors import PlanError
from shared.events import Events
from shared.placement import AGENT, Placement, chain_workers
from shared.telemetry.logs import configure_logs

CONFIG = processes.FILES / "chain.toml"
NAMES = ("near", "far")
"""The trainers, the nearer one first; the nearer one dials the other."""
TRAINER_FLAGS = ('peers.allowed=["127.0.0.1:*"]', "control.listen=none")
SLOW = "near"
SLOW_FROM = 1 / 3
"""The part of the steps after which it becomes slow."""
SLOW_SHARE = 0.25
"""Share of the time in which its process computes then."""
FOLDER = Path("run/demo-chain")
SEEN_SECONDS = 0.05
"""Interval at which a step is kept for the picture."""


def main() -> int:
    """Profile, plan and train; returns the exit code."""
    processes.end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            scratch = Path(folder)
            trainers = {
                name: stack.enter_context(processes.running_trainer(scratch / name, *TRAINER_FLAGS)) for name in NAMES
            }
            for name, (trainer, address) in trainers.items():
                print(f"{name}: process {trainer.pid} at {address}", flush=True)
            listed = ", ".join(f'{{name = "{name}", address = "{address}"}}' for name, (_, address) in trainers.items())
            chain = scratch / "chain.json"
            _agent("profile", f"--config={CONFIG}", f"--set=trainers=[{listed}]", f"--out={chain}", "--repeats=3")
            plan = ("plan", f"--profile={chain}", "--staleness=2", "--bits=8,32")
            _agent(*plan)
            planned = json.loads(_agent(*plan, "--json", show=False))
            runs = zip(planned["workers"], pairwise((0, *planned["cuts"], "")), strict=True)
            placed = [f'placement.{name}="{first}:{stop}"' for name, (first, stop) in runs]
            placed += [f"placement.{name}=[]" for name in NAMES if name not in planned["workers"]]
            flags = [f"trainers=[{listed}]", *placed, f"engine.profile={chain}", *sys.argv[1:]]
            _train(load_config(EdgeConfig, CONFIG, flags, environ={}), trainers[SLOW][0].pid)
            return 0
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as failed:
        return failed.returncode


def _agent(*arguments: str, show: bool = True) -> str:
    """Run a command of the agent and return its output, which also goes to the terminal. Raises CalledProcessError."""
    done = subprocess.run(
        [processes.script("edge-agent"), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    if show:
        print(f"$ edge-agent {arguments[0]}\n{done}", end="", flush=True)
    return done


def _train(config: EdgeConfig, slow_process: int) -> None:
    configure_logs(config.log.level, config.log.format)
    print("$ edge-agent run", flush=True)
    with Pace(slow_process) as pace:
        seen = _Showing(pace)
        result = asyncio.run(run_training(config, seen.subscribe))
    Console().print(summary_table(result.summary))
    run = Run((AGENT, *NAMES), len(result.summary.blocks), seen.moments)
    gained = _gained(run, seen.slow_seconds)
    print(gained)
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / "demo-chain.png", FOLDER / "demo-chain.svg"]
    try:
        draw_run(run, (seen.slow_seconds, f"{SLOW} becomes slow"), gained, *paths)
    except PlanError as failure:
        print(f"no picture: {failure}")
    else:
        print("\n".join(f"picture: {path}" for path in paths))


def _gained(run: Run, slow_seconds: float) -> str:
    """Describe the measured gain of the moves after the worker became slow."""
    after = [move.seconds for move in run.moves if move.seconds > slow_seconds]
    if not after:
        return f"no blocks moved after {SLOW} became slow"
    before = run.steps_per_second(slow_seconds, after[0])
    since = run.steps_per_second(after[-1], run.moments[-1].seconds)
    if before is None or since is None:
        return f"blocks moved {len(after)} times after {SLOW} became slow; too few steps were between to say what that gained"
    return (
        f"with {SLOW} slow: {before:.1f} steps a second before blocks moved, {since:.1f} after the last move, "
        f"{since / before:.1f} times as many"
    )


class _Showing:
    """Says where the chain is cut, has a worker become slow, and keeps what the picture shows."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._deployer: Deployer | None = None
        self._shown: tuple[int, ...] | None = None
        self._began_seconds = time.monotonic()
        self.slow_seconds = 0.0
        """Time at which the worker became slow; the beginning is the first step."""
        self.moments: list[Moment] = []

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(SessionOpened, self._keep_deployer)
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _keep_deployer(self, event: SessionOpened) -> None:
        self._deployer = event.run.deployer

    def _note(self, progress: Statistics) -> None:
        if not self.moments:
            self._began_seconds = time.monotonic()
        seconds = time.monotonic() - self._began_seconds
        if self._pace.share == 1.0 and progress.steps >= SLOW_FROM * progress.total_steps:
            self._pace.share, self.slow_seconds = SLOW_SHARE, seconds
            print(f"step {progress.steps}: {SLOW} becomes slow", flush=True)
        if self._deployer is not None and not self._deployer.moving:
            self._show(progress.steps, self._deployer.placement)
        if progress.loss is not None and self._shown is not None and self._is_due(seconds):
            self.moments.append(Moment(seconds, progress.steps, progress.loss, self._shown))

    def _is_due(self, seconds: float) -> bool:
        return not self.moments or seconds >= self.moments[-1].seconds + SEEN_SECONDS

    def _show(self, step: int, placement: Placement) -> None:
        if chain_workers(placement) is None:
            return
        runs = [sum(len(tile.blocks) for tile in placement.tiles_of(name)) for name in (AGENT, *NAMES)]
        *cuts, _ = accumulate(runs)
        if tuple(cuts) != self._shown:
            self._shown = tuple(cuts)
            print(f"step {step}: blocks {', '.join(map(str, runs))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
