"""Three tiers by the models: `python -m benchmarks.tiers [CASE ...]`; `run`, `links` and `shares` measure (see their --help).

simulate: the tables of paper 004 for LeNet-5 and AlexNet at stated speeds, and its largest gains. cores: AlexNet with 1 to 4
cores at the edge server (Fig. 11). planners: how long planning takes for a deep model and large batches.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.net import LinkError
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json
from benchmarks.tiers.links import CASES as LINK_CASES
from benchmarks.tiers.links import links
from benchmarks.tiers.measured import SECONDS
from benchmarks.tiers.planners import paces, paces_table
from benchmarks.tiers.run import run
from benchmarks.tiers.shares import SETTINGS as SHARED
from benchmarks.tiers.shares import shares
from benchmarks.tiers.simulate import SPEEDS, cores, cores_table, gain_of, gains_table, rows_of, table_of
from shared.bounds import SAMPLES_AHEAD
from shared.errors import IsthmusError

Result = tuple[Sequence[Table], object]
"""Tables, and the same as JSON has it."""


def networks() -> Result:
    """Make the tables of all networks, and their largest gains."""
    rows = {name: list(rows_of(name)) for name in SPEEDS}
    gains = [gain_of(name, each) for name, each in rows.items()]
    tables = [*(table_of(name, each) for name, each in rows.items()), gains_table(gains)]
    return tables, {"rows": [asdict(row) for each in rows.values() for row in each], "gains": list(map(asdict, gains))}


def more_cores() -> Result:
    """Give the edge server more cores."""
    found = cores()
    return [cores_table(found)], found


def planners() -> Result:
    """Time the planners."""
    found = paces()
    return [paces_table(found)], [asdict(pace) for pace in found]


CASES: dict[str, Callable[[], Result]] = {"simulate": networks, "cores": more_cores, "planners": planners}


def measuring(name: str, given: Sequence[str]) -> None:
    """Run a command that measures. Raises as it does."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.tiers {name}", description=MEASURING[name].__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long each is measured (default: %(default)g)"
    )
    if name == "run":
        parser.add_argument("--profile", type=Path, required=True, help="profile of three tiers")
        parser.add_argument(
            "--placements", type=Path, required=True, help="placements (isthmus.placement/v1), one a line"
        )
        parser.add_argument("--staleness", type=int, default=0, help="K of placements that name none (default: 0)")
        parser.add_argument("--ahead", type=int, default=SAMPLES_AHEAD, help="as data.ahead (default: %(default)s)")
        parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    else:
        parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES_OF[name])} (default: all)")
        parser.add_argument("--repeats", type=int, default=1, help="how often each is (default: %(default)s)")
        parser.add_argument(
            "--keep", type=Path, help="a file to which rows are added, and whose rows the tables have, too"
        )
    if name == "shares":
        parser.add_argument(
            "--profiles", type=Path, help="a folder of profiles: what it has of a case is not measured again"
        )
    arguments = parser.parse_args(given)
    if known := CASES_OF.get(name):
        check_cases(parser, arguments.cases, known)
    MEASURING[name](arguments)


MEASURING: dict[str, Callable[[argparse.Namespace], None]] = {"run": run, "links": links, "shares": shares}
"""Commands that measure: they need root."""
CASES_OF: dict[str, Collection[str]] = {"links": LINK_CASES, "shares": SHARED}
"""Cases of the commands that have some."""


def check_cases(parser: argparse.ArgumentParser, given: Sequence[str], known: Collection[str]) -> None:
    """End the process with a sentence for a case that there is not."""
    if unknown := [name for name in given if name not in known]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(known)}")


def main() -> None:
    """Run the cases and print their tables."""
    if sys.argv[1:] and sys.argv[1] in MEASURING:
        try:
            measuring(sys.argv[1], sys.argv[2:])
        except (IsthmusError, LinkError) as error:
            sys.exit(f"{error}")
        return
    parser = benchmark_parser("tiers", __doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    arguments = parser.parse_args()
    check_cases(parser, arguments.cases, CASES)
    console = Console(width=190)
    console.print(machine())
    rows: dict[str, object] = {}
    for name in arguments.cases or CASES:
        tables, rows[name] = CASES[name]()
        for table in tables:
            console.print(table)
        write_json(arguments.json, "tiers", **rows)


if __name__ == "__main__":
    main()
