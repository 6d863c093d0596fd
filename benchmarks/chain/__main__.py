"""Gain of a chain of machines, in live runs: `python -m benchmarks.chain [CASE ...] [--seconds S] [--repeats N]`.

speed: three machines with shares of a core, beside one, two, an even split, and PyTorch's own pipeline. paper: few bits
beside FTPipeHD over slow links. changes: a device takes twice as long, or a link carries a tenth, in the middle of a run.
quiet: nothing happens. killed: the middle is lost, for a while and for ever. What is compared takes turns in one run. Needs
root.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.chain.changes import changes, quiet
from benchmarks.chain.killed import killed
from benchmarks.chain.options import Options, Result
from benchmarks.chain.paper import paper
from benchmarks.chain.speed import speed
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json

CASES: dict[str, Callable[[Options], Result]] = {
    "speed": speed,
    "paper": paper,
    "changes": changes,
    "quiet": quiet,
    "killed": killed,
}


def main() -> None:
    """Measure the cases and print their tables, each when it is done."""
    parser = benchmark_parser("chain", __doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--seconds", type=float, help="how long each measurement is (default: the case's own)")
    parser.add_argument("--repeats", type=int, default=2, help="how often each is made (default: 2)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    console = Console(width=150)
    console.print(machine())
    rows: dict[str, object] = {}
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
            result = CASES[name](Options(Path(folder), arguments.seconds, arguments.repeats))
        for table in result.tables:
            console.print(table)
        rows[name] = list(result.rows)
        write_json(arguments.json, "chain", **rows)


if __name__ == "__main__":
    main()
