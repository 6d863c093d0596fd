"""Bodies of the processes of an agent and of a trainer."""

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import cloud_trainer.server
import edge_agent.run
from edge_agent.training.deployer import Deployer
from shared.client.credentials import TrainerAccess
from shared.config import load_config
from shared.errors import IsthmusError
from shared.telemetry.logs import configure_logs
from tests.chaos.faults import Planned, Saboteur
from tests.chaos.order import record
from tests.support.running import Listening, hand_over, place


def _log_to(path: Path) -> None:
    sys.stderr = path.open("a", buffering=1)
    configure_logs("info", "json")
    faulthandler.register(signal.SIGUSR1, sys.stderr)


def trainer(flags: list[str], name: str, planned: list[Planned], folder: Path) -> None:
    """A trainer, until it is killed."""
    _log_to(folder / f"{name}.log")
    Saboteur(planned, folder / f"{name}.fired")
    asyncio.run(cloud_trainer.server.serve(load_config(cloud_trainer.server.TrainerConfig, None, flags, environ={})))


def agent(flags: list[str], changes: dict[int, Any], planned: list[Planned], folder: Path) -> None:
    """An agent that resumes what there is, and places the blocks otherwise when it has done the steps named.

    changes: by step, a document, or the name of a trainer that gets all that another one has.
    """
    _log_to(folder / "agent.log")
    record(folder / "order")
    Saboteur(planned, folder / "agent.fired")
    torch.set_num_threads(1)
    config = load_config(edge_agent.run.EdgeConfig, None, flags, environ={})
    for moments in Path(config.checkpoints.location).rglob("last-moments"):
        moments.unlink()  # faults are drawn, and may be twice at one step, where a run would say that memory is short
    deployers: list[Deployer] = []

    def on_progress(progress: edge_agent.run.Statistics) -> None:
        if (change := changes.get(progress.steps)) is not None:
            (hand_over if isinstance(change, str) else place)(deployers[-1], change)

    def on_result(result: edge_agent.run.TrainingResult) -> None:
        result.write(folder / "result")

    try:
        asyncio.run(
            edge_agent.run.run_training(
                config, Listening(on_progress, deployers.append), on_result, resume=edge_agent.run.Resume()
            )
        )
    except IsthmusError as error:
        print(f"edge-agent: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def moving_agent(
    flags: list[str], changes: dict[int, Any], ways: dict[str, str], planned: list[Planned], folder: Path
) -> None:
    """An agent that dials trainers by ways of its own, which others do not take. ways: by the address of the trainer."""
    straight = TrainerAccess.channel

    def channel(access: TrainerAccess, address: str, options: Any, socket: Path | None = None) -> Any:
        return straight(access, address if socket else ways.get(address, address), options, socket)

    setattr(TrainerAccess, "channel", channel)  # noqa: B010 - what a process wraps is no assignment to a type
    agent(flags, changes, planned, folder)


def member(flags: list[str], name: str, planned: list[Planned], folder: Path) -> None:
    """A member of a group, which has nothing of an earlier process."""
    _log_to(folder / f"{name}.log")
    Saboteur(planned, folder / f"{name}.fired")
    torch.set_num_threads(1)
    config = load_config(edge_agent.run.EdgeConfig, None, flags, environ={})
    results = config.output.directory or folder / f"{name}-result"
    try:
        asyncio.run(edge_agent.run.run_training(config, write_result=lambda result: result.write(results)))
    except IsthmusError as error:
        print(f"edge-agent: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
