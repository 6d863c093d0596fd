"""A trainer in this process, and trainers and agents as processes of their own."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from cloud_trainer import TrainerConfig, TrainerServer
from edge_agent import EdgeConfig, TrainingResult, run_training
from shared.config import load_config

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent
ALLOWED = '["shared.model.zoo", "tests.support"]'


def edge_config(*overrides: str) -> EdgeConfig:
    """An edge's configuration from flags alone, one thread."""
    return load_config(EdgeConfig, None, ["compute.threads=1", "compute.device=cpu", *overrides], environ={})


def trainer_config(*overrides: str) -> TrainerConfig:
    """A trainer's configuration from flags alone: a free port, one thread, the tests' models allowed."""
    flags = ["server.listen=127.0.0.1:0", f"models.allowed={ALLOWED}", "compute.threads=1", "compute.device=cpu"]
    return load_config(TrainerConfig, None, [*flags, *overrides], environ={})


@asynccontextmanager
async def running_trainer(*overrides: str) -> AsyncIterator[TrainerServer]:
    """A trainer on a real socket, in this process and on this loop."""
    server = TrainerServer(trainer_config(*overrides))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def train_with(server: TrainerServer, *overrides: str) -> TrainingResult:
    """One whole run against a running trainer."""
    return await run_training(edge_config(*overrides, f"trainer.address={server.address}"))


@contextmanager
def trainer_process(*overrides: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real trainer process and its address."""
    flags = ["server.listen=127.0.0.1:0", f"models.allowed={ALLOWED}", "log.format=json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cloud_trainer.main", "serve", *(f"--set={flag}" for flag in [*flags, *overrides])],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, _address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _address(process: subprocess.Popen[str]) -> str:
    """What the trainer logs that it listens on; reading its log waits exactly as long as needed."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (event := json.loads(line)).get("event") == "listening":
            return str(event["address"])
    raise AssertionError(f"the trainer ended with {process.wait()} before it listened")


def run_agent(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A real agent process, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "edge_agent.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **kwargs,
    )
