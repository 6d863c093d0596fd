"""Many agents in one process, as tasks of one loop: `python benchmarks/support/load.py ADDRESS AGENTS SECONDS TRAINER_PID`.

Prints one JSON object (`Load`) about a window that begins when every agent trains. It imports nothing of
`benchmarks`, so that the agents may be those of another checkout.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import torch

from edge_agent.training.events import Progressed
from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.errors import IsthmusError
from shared.events import Events

LEAST_STEPS = 5
"""So many steps of each agent come before the window."""
_MANY_STEPS = 1_000_000


@dataclass(frozen=True)
class Load:
    """The work that was done in the window."""

    seconds: float
    steps: list[int]
    """Steps of each agent."""
    trainer_cpu_seconds: float
    agents_cpu_seconds: float
    """Processor time of all agents together."""


class _Counting:
    """Counts the steps of one agent, and tells when it trains."""

    def __init__(self) -> None:
        self.steps = 0
        self.trains = asyncio.Event()

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _note(self, progress: Statistics) -> None:
        self.steps = progress.steps
        if self.steps >= LEAST_STEPS:
            self.trains.set()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def config(address: str) -> EdgeConfig:
    """An agent of the demo's size: its first block, the cheapest, runs here."""
    flags = [
        f"trainer.address={address}",
        "training.evaluate_every_epochs=0",
        f"training.epochs={_MANY_STEPS}",
        f"training.max_steps={_MANY_STEPS}",
        "deployment.cut=1",
        "deployment.staleness=1",
        "compute.threads=1",
        "compute.device=cpu",
        "checkpoints.location=none",
        "control.listen=none",
    ]
    return load_config(EdgeConfig, None, flags)


async def measure(address: str, agents: int, seconds: float, trainer_pid: int) -> Load:
    """Train with so many agents and count for so many seconds. Raises what an agent ended with."""
    listeners = [_Counting() for _ in range(agents)]
    runs = [asyncio.create_task(run_training(config(address), listener.subscribe)) for listener in listeners]
    all_train: asyncio.Future[object] = asyncio.ensure_future(_all_train(listeners))
    ended: asyncio.Future[object] = asyncio.ensure_future(asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED))
    await asyncio.wait({all_train, ended}, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        raise IsthmusError(f"an agent ended before all trained: {next(run for run in runs if run.done()).exception()}")
    before = [listener.steps for listener in listeners]
    trainer, own, began = cpu_seconds(trainer_pid), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    load = Load(
        time.monotonic() - began,
        _less([listener.steps for listener in listeners], before),
        cpu_seconds(trainer_pid) - trainer,
        time.process_time() - own,
    )
    for run in runs:
        run.cancel()
    for run in runs:
        with suppress(asyncio.CancelledError):
            await run
    return load


async def _all_train(listeners: Sequence[_Counting]) -> None:
    for listener in listeners:
        await listener.trains.wait()


def _less(after: Sequence[int], before: Sequence[int]) -> list[int]:
    return [last - first for last, first in zip(after, before, strict=True)]


def main() -> None:
    """Measure as told."""
    address, agents, seconds, trainer_pid = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # errors
    torch.set_num_threads(1)
    print(json.dumps(asdict(asyncio.run(measure(address, int(agents), float(seconds), int(trainer_pid))))))


if __name__ == "__main__":
    main()
