"""Runs benchmarks and keeps what they print: `python -m benchmarks.record NAME...`.

What a benchmark prints stands in `benchmarks/results/`, in a file of its name without the folder (`planning.decision`:
`decision.md`), under the command that prints it again. The pages quote from there.
"""

import argparse
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
WIDTH = 150


def printed(name: str) -> str:
    """What `python -m benchmarks.NAME` prints; its log stays on this terminal."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "COLUMNS": str(WIDTH)}
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def recorded(name: str, day: date, text: str) -> str:
    """The file of what a benchmark printed on a day."""
    return f"`python -m benchmarks.{name}`, {day}:\n\n```text\n{text}\n```\n"


def main() -> None:
    """Run them one after the other; what was recorded before a failure stays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    for name in parser.parse_args().names:
        (RESULTS / f"{name.rpartition('.')[2]}.md").write_text(recorded(name, datetime.now(UTC).date(), printed(name)))


if __name__ == "__main__":
    main()
