"""Many sessions on one trainer: `python -m benchmarks.sessions [--agents N ...] [--seconds S] [--against FOLDER]`.

1, 4, 16 and 64 agents of the demo's size train at the same time on one trainer with one compute thread; they are tasks of one
process, whose work the table shows beside the trainer's. Goals: all together do not do fewer samples a second than fewer
agents did, and no agent does more than twice the steps of another. --against names another checkout of this project, whose
trainer and agents take turns with ours.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.load import Load
from benchmarks.support.machine import machine
from benchmarks.support.processes import Trainer
from benchmarks.support.report import write_json

HERE = Path(__file__).resolve().parent.parent
AGENTS = (1, 4, 16, 64)
SECONDS = 20.0
BATCH = 32
"""Samples of a step: the default of data.batch_size."""


@dataclass(frozen=True)
class Row:
    """The performance of one trainer for so many agents."""

    trainer: str
    agents: int
    samples_per_second: float
    """Samples a second of all agents together."""
    most_over_least: float
    """Steps of the quickest agent over those of the slowest; infinite where one did none."""
    trainer_cpu_milliseconds: float
    """A step."""
    agents_cpu_milliseconds: float
    """A step."""


def row(trainer: str, load: Load) -> Row:
    """Compute the row of a window."""
    steps = sum(load.steps)
    return Row(
        trainer,
        len(load.steps),
        BATCH * steps / load.seconds,
        max(load.steps) / min(load.steps) if min(load.steps) else float("inf"),
        1e3 * load.trainer_cpu_seconds / max(steps, 1),
        1e3 * load.agents_cpu_seconds / max(steps, 1),
    )


def measured(tree: Path, agents: int, seconds: float) -> Load:
    """One window of so many agents on one trainer, all of `tree`."""
    flags = (f"server.max_sessions={agents}", "compute.threads=1", "compute.device=cpu", "checkpoints.location=none")
    trainer = Trainer(*flags, "control.listen=none", tree=tree)
    try:
        arguments = [trainer.address, str(agents), str(seconds), str(trainer.pid)]
        # By its path: another checkout may lack it.
        command = [sys.executable, str(HERE / "benchmarks" / "support" / "load.py"), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    finally:
        trainer.stop()
    return Load(**json.loads(done.stdout))


def table(rows: list[Row]) -> Table:
    """The rows for a person."""
    shown = Table(
        "trainer", "agents", "samples/s in all", "steps, most / least", "trainer's CPU a step", "agents' CPU a step"
    )
    for each in rows:
        shown.add_row(
            each.trainer,
            str(each.agents),
            f"{each.samples_per_second:.0f}",
            f"{each.most_over_least:.2f}",
            f"{each.trainer_cpu_milliseconds:.2f} ms",
            f"{each.agents_cpu_milliseconds:.2f} ms",
        )
    return shown


def main() -> None:
    """Measure, and print one table."""
    parser = benchmark_parser("sessions", __doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=AGENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each window (%(default)s)")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    arguments = parser.parse_args()
    trees = {"ours": HERE} | ({"before": arguments.against.resolve()} if arguments.against else {})
    rows = [
        row(name, measured(tree, agents, arguments.seconds))
        for agents in arguments.agents
        for name, tree in trees.items()
    ]
    console = Console(width=150)
    console.print(f"{machine()}; windows of {arguments.seconds:g} s")
    console.print(table(rows))
    write_json(arguments.json, "sessions", rows=rows)


if __name__ == "__main__":
    main()
