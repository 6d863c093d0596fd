"""The exchange of a group's parameters: `python -m benchmarks.groups [CASE ...] [--repeats N]`.

schedules: every strategy in the simulator on the networks of paper 002, beside its figures and the least seconds there are,
and the time of a schedule.
"""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.groups.grid import MESSAGE_SECONDS, claims, claims_table, grid, missed_table, saved_table
from benchmarks.groups.paper import (
    savings,
    savings_table,
    sensitivity,
    sensitivity_table,
    speed_ups,
    speed_ups_table,
)
from benchmarks.groups.scheduling import scheduling_seconds, scheduling_table
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json


def schedules(repeats: int) -> tuple[Sequence[Table], dict[str, object]]:
    """The grid, the figures of the paper, and the time of a schedule."""
    cells, bars, shapes, times = list(grid()), savings(), sensitivity(), speed_ups()
    taken = scheduling_seconds(repeats)
    tables = [
        claims_table(claims(cells)),
        missed_table(cells),
        *(saved_table(cells, message) for message in MESSAGE_SECONDS),
        savings_table(bars),
        sensitivity_table(shapes),
        speed_ups_table(times),
        scheduling_table(taken),
    ]
    scheduling = {f"{name} {depth}": spread for (name, depth), spread in taken.items()}
    return tables, {
        "cells": cells,
        "savings": bars,
        "sensitivity": shapes,
        "speed_ups": times,
        "scheduling": scheduling,
    }


CASES: dict[str, Callable[[int], tuple[Sequence[Table], dict[str, object]]]] = {"schedules": schedules}


def main() -> None:
    """Compute the cases and print their tables."""
    parser = benchmark_parser("groups", __doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--repeats", type=int, default=100, help="schedules timed (default: 100)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    console = Console(width=150)
    console.print(machine())
    rows: dict[str, object] = {}
    for name in arguments.cases or CASES:
        tables, rows[name] = CASES[name](arguments.repeats)
        for table in tables:
            console.print(table)
    write_json(arguments.json, "groups", **rows)


if __name__ == "__main__":
    main()
