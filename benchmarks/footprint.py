"""Memory of processes, and the time that commands take to answer: `python -m benchmarks.footprint`.

    python -m benchmarks.footprint [--repeats N] [--against FOLDER] [--no-memory] [--json PATH]

An agent that trains the demo; a trainer without a session, with one and with four.
PSS counts a page that n processes share as an nth of it, so it is what a process costs beside those that run with it. --against
names another checkout of this project, whose processes take turns with ours.

Commands are run with their modules compiled, as they are after the first time. Goal: under 0.4 s.
"""

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.command_runs import Run, all_answered
from benchmarks.support.machine import machine
from benchmarks.support.processes import Agent, Trainer
from benchmarks.support.report import Spread, write_json

HERE = Path(__file__).resolve().parent.parent
TRAINING_SECONDS = 5.0
LOOK_SECONDS = 0.1
MB = 1e6
COMPUTE = ("compute.threads=1", "compute.device=cpu", "control.listen=none", "checkpoints.location=none")


@dataclass(frozen=True)
class Memory:
    """The most that a process had, in bytes."""

    pss: int
    resident: int


def memory_of(pid: int) -> Memory:
    """Return the current memory of a process, and the most that was ever resident."""
    now = Path(f"/proc/{pid}/smaps_rollup").read_text()
    ever = Path(f"/proc/{pid}/status").read_text()
    return Memory(_kilobytes("Pss", now), _kilobytes("VmHWM", ever))


def _kilobytes(key: str, text: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) * 1024


class _Watch:
    """Looks at a process again and again on a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.most = memory_of(pid)
        self._pid = pid

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look while the body runs, at its beginning and at its end too."""
        over = threading.Event()
        thread = threading.Thread(target=self._look_until, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look_until(self, over: threading.Event) -> None:
        while True:
            try:
                seen = memory_of(self._pid)
            except (OSError, AssertionError):  # it has ended
                return
            self.most = Memory(max(self.most.pss, seen.pss), max(self.most.resident, seen.resident))
            if over.wait(LOOK_SECONDS):
                return


def measured(tree: Path) -> dict[str, Memory]:
    """Each process of a checkout once."""
    trainer = Trainer(*COMPUTE, tree=tree)
    try:
        watch = _Watch(trainer.pid)
        found = {"trainer without a session": watch.most}
        for count in (1, 4):
            with watch.looking(), _training(count, trainer.address, tree) as agents:
                of_agent = _Watch(agents[0].pid)
                with of_agent.looking():
                    time.sleep(TRAINING_SECONDS)
            if count == 1:
                found["agent that trains the demo"] = of_agent.most
            found[f"trainer with {count} session{'s' if count > 1 else ''}"] = watch.most
    finally:
        trainer.stop()
    return found


@contextmanager
def _training(count: int, address: str, tree: Path) -> Iterator[list[Agent]]:
    """So many agents that all train the demo, without its evaluations, while the body runs."""
    endless = ("training.epochs=100000", "training.evaluate_every_epochs=0")
    with ExitStack() as agents:
        started = []
        for _ in range(count):
            started.append(Agent(address, [*COMPUTE, *endless], tree=tree))
            agents.callback(started[-1].stop)
        yield started


def commands_table(found: Mapping[str, Mapping[str, Sequence[Run]]]) -> Table:
    """A row a command; a pair of columns a checkout."""
    names = next(iter(found.values()))
    shown = Table("command", *(f"{what}, {name}" for name in names for what in ("seconds", "processor")))
    for command, runs in found.items():
        cells = []
        for repeats in runs.values():
            for figure in ("wall", "processor"):
                cells.append(Spread.of([getattr(run, figure) for run in repeats]).show(1, 2))
        shown.add_row(command, *cells)
    return shown


def table(found: Mapping[str, Sequence[Mapping[str, Memory]]]) -> Table:
    """A row a process; a pair of columns a checkout. found: the repeats of each checkout, by its name."""
    shown = Table("process", *(f"{what}, {name}" for name in found for what in ("PSS", "resident at most")))
    for process in next(iter(found.values()))[0]:
        cells = []
        for repeats in found.values():
            for figure in ("pss", "resident"):
                cells.append(Spread.of([getattr(each[process], figure) for each in repeats]).show(1 / MB, 0))
        shown.add_row(process, *cells)
    return shown


def main() -> None:
    """Measure, and print both tables."""
    parser = benchmark_parser("footprint", __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind (%(default)s)")
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="only what commands take")
    arguments = parser.parse_args()
    trees = {"ours": HERE} | ({"before": arguments.against.resolve()} if arguments.against else {})
    console = Console(width=150)
    console.print(
        f"{machine()}, {os.cpu_count()} cores; median (quartiles) of {arguments.repeats} processes, in seconds"
    )
    answers = all_answered(trees, arguments.repeats)
    console.print(commands_table(answers))
    found: dict[str, list[dict[str, Memory]]] = {name: [] for name in trees}
    for _ in range(arguments.repeats if arguments.memory else 0):
        for name, tree in trees.items():
            found[name].append(measured(tree))
    if arguments.memory:
        console.print("MB")
        console.print(table(found))
    write_json(arguments.json, "footprint", found=found, answers=answers)


if __name__ == "__main__":
    main()
