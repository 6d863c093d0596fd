"""Time until a chain of three trainers goes on after its middle is killed, K = 0.

The middle is killed (SIGKILL) and started again: counted from the moment at which it says that it listens to the next step
that all have done; goal 2 s and what loading takes. And it is killed for ever, in a new run each time: counted from the end of
`trainer.replace_after_seconds`; goal 30 s. The steps are read from the step log.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.table import Table

from benchmarks.chain.options import Options, Result
from benchmarks.recovery import (
    BETWEEN_STEPS,
    STEP_SECONDS,
    TRAINER_FLAGS,
    Recovery,
    Steps,
    agent_flags,
)
from benchmarks.support.processes import Agent, Trainer
from benchmarks.support.report import Spread

NAMES, MIDDLE = ("near", "far", "cloud"), "far"
REPLACE_AFTER_SECONDS, REPLACE_GOAL_SECONDS = 5.0, 30.0
BACK_GOAL_SECONDS = 2.0
"""Loading comes on top of that."""
KILLS_A_REPEAT, RUNS_A_REPEAT = 4, 2
MODEL = [
    'model.factory="benchmarks.networks:timed_blocks"',
    f"model.kwargs={{amounts={[[STEP_SECONDS / 8] * 2] * 4}, feature_floats=500}}",
]
PLACED = ['placement.edge="0:1"', 'placement.near="1:2"', 'placement.far="2:3"', 'placement.cloud="3:"']


@contextmanager
def chain(folder: Path, replace_after_seconds: float) -> Iterator[tuple[dict[str, Trainer], Steps]]:
    """The trainers by name, and the steps of an agent that trains with them."""
    with ExitStack() as stack:
        trainers = {name: Trainer(*trainer_flags(folder, name)) for name in NAMES}
        stack.callback(_stop_all, trainers)
        named = ", ".join(
            f'{{name="{name}", address="{trainer.address}", replace_after_seconds={replace_after_seconds}}}'
            for name, trainer in trainers.items()
        )
        replaced = ("deployment.cut", "model.")
        common = [flag for flag in agent_flags(folder) if not flag.startswith(replaced)]
        agent = Agent(None, [*common, *MODEL, *PLACED, f"trainers=[{named}]", "checkpoints.replicas=1"])
        stack.callback(agent.stop)
        yield trainers, Steps(folder, agent.session)


def _stop_all(trainers: Mapping[str, Trainer]) -> None:
    for trainer in trainers.values():  # those that run by now, in the place of those that were killed
        trainer.stop()


def trainer_flags(folder: Path, name: str) -> list[str]:
    """The flags of a trainer."""
    return [
        *TRAINER_FLAGS,
        'peers.allowed=["127.0.0.1:*"]',
        "control.listen=none",
        f"checkpoints.location={folder / name}",
    ]


def comes_back(folder: Path, kills: int) -> list[float]:
    """The middle is started again at once, each time."""
    with chain(folder, 600.0) as (trainers, steps):
        seconds = []
        for _ in range(kills):
            steps.next(BETWEEN_STEPS)
            trainers[MIDDLE].kill()
            trainers[MIDDLE] = Trainer(*trainer_flags(folder, MIDDLE), listen=trainers[MIDDLE].address)
            began = time.monotonic()
            steps.skip()
            seconds.append(steps.next() - began)
        return seconds


def stays_away(folder: Path, runs: int) -> list[float]:
    """The middle never comes back; a run each time."""
    seconds = []
    for run in range(runs):
        own = folder / str(run)
        own.mkdir()
        with chain(own, REPLACE_AFTER_SECONDS) as (trainers, steps):
            steps.next(BETWEEN_STEPS)
            trainers[MIDDLE].kill()
            limit = time.monotonic() + REPLACE_AFTER_SECONDS
            steps.skip()
            seconds.append(steps.next() - limit)
    return seconds


CASES: dict[str, tuple[Callable[[Path, int], list[float]], int, float]] = {
    "middle killed, and started again": (comes_back, KILLS_A_REPEAT, BACK_GOAL_SECONDS),
    f"middle killed for ever, replaced after {REPLACE_AFTER_SECONDS:g} s": (
        stays_away,
        RUNS_A_REPEAT,
        REPLACE_GOAL_SECONDS,
    ),
}
"""Measurement, runs in a repeat, and goal of each case."""


def killed(options: Options) -> Result:
    """Both losses."""
    table = Table("what was lost", "repeats", "to the first new step, s", "longest, s", "goal, s", "longest")
    recoveries = []
    for number, (loss, (repeats, often, goal_seconds)) in enumerate(CASES.items()):
        folder = options.folder / str(number)
        folder.mkdir()
        recoveries.append(Recovery(loss, goal_seconds, repeats(folder, often * options.repeats)))
        options.tell(recoveries[-1])
    for recovery in recoveries:
        longest = max(recovery.seconds)
        kept = "kept" if longest <= recovery.goal_seconds else "MISSED"
        spread = Spread.of(recovery.seconds).show(1, 2)
        table.add_row(
            recovery.loss, str(len(recovery.seconds)), spread, f"{longest:.2f}", f"{recovery.goal_seconds:g}", kept
        )
    return Result([table], recoveries)
