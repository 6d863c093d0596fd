"""`make demo-chain`: an agent and two trainers, three real processes on loopback, train one model as a chain.

The chain is profiled and planned, and trained under that plan. Then the machine of the middle worker becomes slow: its process
stands still for most of the time, and the engine moves blocks away from it. Nothing is left running, whatever ends it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import demo
from rich.console import Console

from edge_agent import EdgeConfig, TrainingListener, run_training
from edge_agent.commands.terminal import summary_table
from edge_agent.training.open_run import Deploys
from edge_agent.training.statistics import Statistics
from shared.config import load_config
from shared.placement import AGENT, Placement, cuts_of
from shared.telemetry.logs import configure_logs

CONFIG = demo.HERE / "chain.toml"
NAMES = ("near", "far")
"""The trainers, the nearer one first; the nearer one dials the other."""
TRAINER_FLAGS = ('peers.allowed=["127.0.0.1:*"]', "control.listen=none")
SLOW = "near"
SLOW_FROM = 1 / 3
"""The part of the steps after which it becomes slow."""
RUNNING_SECONDS, STANDING_SECONDS = 0.01, 0.03
"""How long it computes and stands still in turns: at a quarter of its pace, and finer than a step."""


def main() -> int:
    """Profile, plan and train; returns the exit code."""
    demo.end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            scratch = Path(folder)
            trainers = {
                name: stack.enter_context(demo.running_trainer(scratch / name, *TRAINER_FLAGS)) for name in NAMES
            }
            for name, (trainer, address) in trainers.items():
                print(f"{name}: process {trainer.pid} at {address}", flush=True)
            listed = ", ".join(f'{{name = "{name}", address = "{address}"}}' for name, (_, address) in trainers.items())
            chain = scratch / "chain.json"
            _agent("profile", f"--config={CONFIG}", f"--set=trainers=[{listed}]", f"--out={chain}", "--repeats=3")
            plan = ("plan", f"--stages={chain}", "--staleness=2", "--bits=8,32")
            _agent(*plan)
            runs = pairwise((0, *json.loads(_agent(*plan, "--json", show=False))["cuts"], ""))
            placed = [
                f'placement.{name}="{first}:{stop}"' for name, (first, stop) in zip((AGENT, *NAMES), runs, strict=True)
            ]
            flags = [f"trainers=[{listed}]", *placed, f"engine.chain={chain}", *sys.argv[1:]]
            _train(load_config(EdgeConfig, CONFIG, flags, environ={}), trainers[SLOW][0].pid)
            return 0
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as failed:
        return failed.returncode


def _agent(*arguments: str, show: bool = True) -> str:
    """What a command of the agent prints, also on the terminal. Raises CalledProcessError."""
    done = subprocess.run(
        [demo.SCRIPTS / "edge-agent", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    if show:
        print(f"$ edge-agent {arguments[0]}\n{done}", end="", flush=True)
    return done


def _train(config: EdgeConfig, slow_process: int) -> None:
    configure_logs(config.log.level, config.log.format)
    print("$ edge-agent run", flush=True)
    with _Slowing(slow_process) as slowing:
        result = asyncio.run(run_training(config, _Showing(slowing)))
    Console().print(summary_table(result.summary))


class _Slowing:
    """A process that stands still in turns once it is told to; at exit it runs as before."""

    def __init__(self, process: int) -> None:
        self._process, self._ended = process, threading.Event()
        self._thread = threading.Thread(target=self._slow)

    def __enter__(self) -> "_Slowing":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def begin(self) -> None:
        """Slow it down from now on."""
        self._thread.start()

    def _slow(self) -> None:
        while not self._ended.wait(RUNNING_SECONDS):
            os.kill(self._process, signal.SIGSTOP)
            try:
                self._ended.wait(STANDING_SECONDS)
            finally:
                os.kill(self._process, signal.SIGCONT)


class _Showing(TrainingListener):
    """Says where the chain is cut, and has a worker become slow."""

    def __init__(self, slowing: _Slowing) -> None:
        self._slowing, self._is_slow = slowing, False
        self._deployer: Deploys | None = None
        self._shown: tuple[int, ...] | None = None

    def session_opened(self, deployer: Deploys) -> None:
        """Training begins."""
        self._deployer = deployer

    def progressed(self, progress: Statistics) -> None:
        """A step is done."""
        if not self._is_slow and progress.steps >= SLOW_FROM * progress.total_steps:
            self._is_slow = True
            self._slowing.begin()
            print(f"step {progress.steps}: {SLOW} becomes slow", flush=True)
        if self._deployer is not None and not self._deployer.moving:
            self._show(progress.steps, self._deployer.placement)

    def _show(self, step: int, placement: Placement) -> None:
        cuts = cuts_of(placement)
        if cuts is not None and cuts != self._shown:
            self._shown = cuts
            print(f"step {step}: cuts {', '.join(map(str, cuts))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
