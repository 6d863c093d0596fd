"""A run whose process is killed ten times, at drawn steps, and goes on each time in another one."""

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from edge_agent.sessions.resuming import Resume
from isthmus import TrainingResult, run_training
from tests.support.forked import Forked
from tests.support.running import Listening, edge_config, trainer_process

KILLS = 10


def train_with_kills(flags: Sequence[str], steps: int, folder: Path, seed: str) -> TrainingResult:
    """Train across a cut beside a trainer in a process of its own, and return the result of the last process."""
    draw, apart = random.Random(seed), (steps - 5) // KILLS  # before the end, also of steps that make no whole update
    kept = [f"checkpoints.location={folder / 'edge'}", "checkpoints.every_steps=7", "deployment.cut=2"]
    with trainer_process("compute.threads=1", f"checkpoints.location={folder / 'trainer'}") as (_, address):
        flags = [*flags, *kept, "compute.threads=1", f"trainer.address={address}"]
        for number in range(1, KILLS + 1):
            step = number * apart - draw.choice((1, 2))  # apart, since two kills at one step would end the run
            assert Forked(train_until, step, flags).wait(120) == -signal.SIGKILL
        return asyncio.run(run_training(edge_config(*flags), resume=Resume()))


def train_until(step: int, flags: Sequence[str]) -> None:
    """Go on with a run until so many steps are done, and be killed then."""

    def on_progress(now):
        if now.steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run_training(edge_config(*flags), Listening(on_progress), resume=Resume()))
