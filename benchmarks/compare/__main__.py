"""Two trainings as users of four systems write them: `python -m benchmarks.compare`.

A timm network on a folder of pictures, and a text classifier with adapters, in plain PyTorch, Lightning, Flower (features up,
error gradients down, as a deployment on this machine) and Isthmus. All get the same first weights, batches, optimizer and
rates. Isthmus must end with the bits of plain PyTorch, or the benchmark fails; of the others it says whether they do. Lightning
and Flower run under a Python of their own, where one is given. Flower starts a process for each message, so it may train for
fewer steps (--flower-steps), and then only the time of a step is known of it.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.compare.counting import lines_of
from benchmarks.compare.made import MAKERS
from benchmarks.compare.running import Done, prepare, run
from benchmarks.compare.systems import FLOWER, ISTHMUS, LIGHTNING, PLAIN, PROGRAMS, SHARED_FILE, TRAININGS, System
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json
from shared.errors import IsthmusError


@dataclass(frozen=True)
class Row:
    """A system and a training."""

    system: str
    training: str
    lines: int
    commands: int
    seconds: Spread
    """From the start of the command that trains to its end, start of Python and imports included."""
    over_plain: Spread
    """The same, over plain PyTorch in the same round."""
    processor_seconds: Spread
    """Time of all processes on processors."""
    accuracy: float | None
    """None where not all steps were done."""
    same_bits: bool | None
    """True if the weights at the end are those of plain PyTorch, bit for bit."""
    step_seconds: Spread | None
    """Time between the ends of two steps, where the program shows these."""
    steps: int
    of_steps: int
    bytes_up: int | None
    bytes_down: int | None


def compared(
    training: str,
    pythons: dict[System, Path],
    runs: int,
    threads: int,
    part: float,
    flower_steps: int | None,
) -> Iterator[Row]:
    """Run all systems `runs` times in turns, and yield a row for each. Raises IsthmusError where ours has other bits."""
    with tempfile.TemporaryDirectory(prefix="isthmus-") as name:
        root = Path(name)
        data = root / "data"
        data.mkdir()
        MAKERS[training](data, part)
        prepare(training, data, pythons[PLAIN], threads)
        steps = json.loads((data / "steps.json").read_text())
        asked = {system: min(steps, flower_steps or steps) if system is FLOWER else steps for system in pythons}
        done: dict[System, list[Done]] = {system: [] for system in pythons}
        for number in range(runs):
            for system, python in pythons.items():
                folder = root / f"{number}-{len(done[system])}-{system.name}"
                done[system].append(run(system, training, data, folder, python, threads, asked[system]))
        plain = done[PLAIN][-1]
        weights = torch.load(plain.folder / "net.pth", weights_only=True)
        for system, every in done.items():
            last, whole = every[-1], asked[system] == steps
            same = whole and _same_bits(list(weights.values()), system.saved(last.folder, list(weights)))
            if system is ISTHMUS and not same:
                raise IsthmusError(f"{training}: the weights of Isthmus differ from those of plain PyTorch")
            summary = folder_summary(last.folder) if system is ISTHMUS else {}
            ratios = [one.seconds / at.seconds for one, at in zip(every, done[PLAIN], strict=True)]
            step_seconds = [seconds for one in every for seconds in one.step_seconds]
            accuracy = system.accuracy(last.folder, last.printed)
            yield Row(
                system.name,
                training,
                system.lines(training),
                system.commands,
                Spread.of([one.seconds for one in every]),
                Spread.of(ratios),
                Spread.of([one.processor_seconds for one in every]),
                accuracy if whole else None,
                same if whole else None,
                Spread.of(step_seconds) if step_seconds else None,
                asked[system],
                steps,
                summary.get("bytes_up"),
                summary.get("bytes_down"),
            )


def folder_summary(folder: Path) -> dict[str, int]:
    """Read the summary of a run of ours."""
    summary: dict[str, int] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


def _same_bits(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def table_of(training: str, rows: Sequence[Row]) -> Table:
    """Show the rows of a training."""
    shared = lines_of(PROGRAMS / training / SHARED_FILE)
    table = Table(
        "system",
        "lines",
        "commands",
        "seconds",
        "over plain",
        "processor seconds",
        "a step",
        "accuracy",
        "bits of plain",
        "MB up, down",
        title=f"{training}; beside the lines each has {shared} of network and data, the same for all",
    )
    for row in rows:
        whole = row.steps == row.of_steps
        table.add_row(
            row.system,
            str(row.lines),
            str(row.commands),
            row.seconds.show() if whole else f"{row.seconds.show()} for {row.steps} of {row.of_steps} steps",
            row.over_plain.show(digits=2) if whole else "-",
            row.processor_seconds.show(),
            "-" if row.step_seconds is None else row.step_seconds.show(digits=2),
            "-" if row.accuracy is None else f"{row.accuracy:.4f}",
            {None: "-", True: "yes", False: "no"}[row.same_bits],
            "-" if row.bytes_up is None else f"{row.bytes_up / 1e6:.1f}, {(row.bytes_down or 0) / 1e6:.1f}",
        )
    return table


def main() -> None:
    """Measure, and print a table for each training."""
    parser = benchmark_parser("compare", __doc__)
    parser.add_argument("--only", choices=TRAININGS, help="one training (default: both)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each system, in turns (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch in each process (%(default)s)")
    parser.add_argument("--part", type=float, default=1.0, help="part of the data, for a quick look (%(default)s)")
    parser.add_argument("--lightning", type=Path, metavar="PYTHON", help="Python that has lightning (default: none)")
    parser.add_argument("--flower", type=Path, metavar="PYTHON", help="Python that has flwr (default: none)")
    parser.add_argument("--flower-steps", type=int, help="steps that Flower trains for (default: all)")
    arguments = parser.parse_args()
    here = Path(sys.executable)
    chosen = {PLAIN: here, LIGHTNING: arguments.lightning, FLOWER: arguments.flower, ISTHMUS: here}
    pythons = {system: python for system, python in chosen.items() if python is not None}
    console = Console(width=180)
    console.print(f"{machine()}; {arguments.threads} thread(s) a process; median (quartiles) of {arguments.runs} runs")
    found: list[Row] = []
    for training in (arguments.only,) if arguments.only else TRAININGS:
        rows = list(
            compared(training, pythons, arguments.runs, arguments.threads, arguments.part, arguments.flower_steps)
        )
        console.print(table_of(training, rows))
        found += rows
    write_json(arguments.json, "compare", rows=found)


if __name__ == "__main__":
    main()
