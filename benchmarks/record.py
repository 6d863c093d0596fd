"""Runs benchmarks and keeps what they print: `python -m benchmarks.record [--against FOLDER] NAME...`.

What a benchmark prints stands in `benchmarks/results/`, in a file of its name without the folder (`planning.decision`:
`decision.md`), under the command that prints it again. The pages quote from there. --against names another checkout of this
project: its benchmark of that name takes turns with ours, twice each, and the file has what all four printed.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
RESULTS = HERE / "benchmarks" / "results"
WIDTH = 150
TURNS = 2


def printed(name: str, tree: Path = HERE) -> str:
    """Return the output of `python -m benchmarks.NAME` of a checkout; its log stays on this terminal."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=tree,
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": str(tree)},
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def recorded(name: str, day: date, text: str) -> str:
    """The file of what a benchmark printed on a day."""
    return f"`python -m benchmarks.{name}`, {day}:\n\n```text\n{text}\n```\n"


def in_turns(name: str, day: date, against: Path) -> str:
    """The file of what a benchmark of this checkout and of another one printed on a day, in turns."""
    commit = subprocess.check_output(["git", "-C", against, "rev-parse", "--short", "HEAD"], text=True).strip()
    turns = [
        f"{tree_name}:\n\n```text\n{printed(name, tree)}\n```\n"
        for _ in range(TURNS)
        for tree_name, tree in (("Now", HERE), (f"Before, {commit}", against))
    ]
    head = f"`python -m benchmarks.{name}` of two checkouts (`python -m benchmarks.record --against FOLDER {name}`), {day}.\n"
    return "\n".join([head, *turns])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run them one after the other; what was recorded before a failure stays."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, measured in turns with ours")
    parser.add_argument("names", nargs="+", metavar="NAME")
    chosen = parser.parse_args(arguments)
    for name in chosen.names:
        day = datetime.now(UTC).date()
        text = in_turns(name, day, chosen.against.resolve()) if chosen.against else recorded(name, day, printed(name))
        (RESULTS / f"{name.rpartition('.')[2]}.md").write_text(text)


if __name__ == "__main__":
    main()
