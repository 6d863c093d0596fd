"""Runs benchmarks and puts what they print into a page: `python -m benchmarks.record NAME... --into docs/results.md`.

What a benchmark prints stands between `<!-- NAME -->` and `<!-- end of NAME -->`, under the command that prints it again.
"""

import argparse
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

WIDTH = 150


def printed(name: str) -> str:
    """What `python -m benchmarks.NAME` prints; its log stays on this terminal."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "COLUMNS": str(WIDTH)}
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def recorded(page: str, name: str, text: str) -> str:
    """`page` with `text` between the marks of `name`. Raises LookupError when it has no such marks."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not marks.search(page):
        raise LookupError(f"the page has no <!-- {name} --> and <!-- end of {name} -->")
    day = datetime.now(UTC).date()
    block = f"`python -m benchmarks.{name}`, {day}:\n\n```text\n{text}\n```\n"
    return marks.sub(lambda match: f"{match[1]}\n{block}\n{match[2]}", page)


def main() -> None:
    """Run them one after the other; what was recorded before a failure stays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args()
    for name in arguments.names:
        text = printed(name)
        page = recorded(arguments.into.read_text(), name, text)
        arguments.into.write_text(page)


if __name__ == "__main__":
    main()
