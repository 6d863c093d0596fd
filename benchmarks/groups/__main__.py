"""The exchange of a group's parameters: `python -m benchmarks.groups CASE ...`.

schedules: every strategy in the simulator on the networks of paper 002, beside its figures and the least seconds there are,
and the time of a schedule. links: real runs over shaped links, with blocks that sleep, beside the simulator, the bound,
PyTorch's DistributedDataParallel and, with --flower and --mxnet, Flower's federated averaging and MXNet's parameter server.
run: the same of a file of layers, with --layers. bits: steps in fewer bits both ways beside exact ones, where transfers take
four times as long as computing. again: members that make their schedule again, beside such as do not, where a link gets slower.
The last four need root.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.groups.again import again
from benchmarks.groups.bits import bits
from benchmarks.groups.foreign_peers import FLOWER, MXNET, ForeignPeer
from benchmarks.groups.grid import MESSAGE_SECONDS, claims, claims_table, grid, missed_table, saved_table
from benchmarks.groups.links import MIXES, links
from benchmarks.groups.measured import measure_group, measured_table
from benchmarks.groups.paper import (
    savings,
    savings_table,
    sensitivity,
    sensitivity_table,
    speed_ups,
    speed_ups_table,
)
from benchmarks.groups.scheduling import profiling_shares, profiling_table, scheduling_seconds, scheduling_table
from benchmarks.groups.sleeping import MOST_MEMBERS
from benchmarks.support.arguments import benchmark_parser, numbers
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json
from edge_agent.planner_names import STRATEGY_NAMES
from edge_agent.planning.schedules import load_layers


def schedules(repeats: int) -> tuple[Sequence[Table], dict[str, object]]:
    """The grid, the figures of the paper, and the time of a schedule."""
    cells, bars, shapes, times = list(grid()), savings(), sensitivity(), speed_ups()
    taken, shares = scheduling_seconds(repeats), profiling_shares()
    tables = [
        claims_table(claims(cells)),
        missed_table(cells),
        *(saved_table(cells, message) for message in MESSAGE_SECONDS),
        savings_table(bars),
        sensitivity_table(shapes),
        speed_ups_table(times),
        scheduling_table(taken),
        profiling_table(shares),
    ]
    scheduling = {f"{name} {depth}": spread for (name, depth), spread in taken.items()}
    return tables, {
        "cells": cells,
        "savings": bars,
        "sensitivity": shapes,
        "speed_ups": times,
        "scheduling": scheduling,
        "profiling": shares,
    }


Show = Callable[[Table], None]


def all_schedules(arguments: argparse.Namespace, show: Show) -> dict[str, object]:
    """Compute `schedules`."""
    tables, rows = schedules(arguments.repeats)
    for table in tables:
        show(table)
    return rows


def run(arguments: argparse.Namespace, show: Show) -> dict[str, object]:
    """Measure strategies on the layers of a file."""
    group = measure_group(
        load_layers(arguments.layers),
        arguments.members,
        arguments.strategy,
        arguments.peers,
        arguments.rounds,
        foreign_of(arguments),
    )
    show(measured_table(group, str(arguments.layers)))
    return {"group": group}


def all_links(arguments: argparse.Namespace, show: Show) -> dict[str, object]:
    """Measure `links`."""
    return links(arguments.only, arguments.rounds, foreign_of(arguments), show)


def fewer_bits(arguments: argparse.Namespace, show: Show) -> dict[str, object]:
    """Measure `bits`."""
    return bits(arguments.rounds, show)


def made_again(_arguments: argparse.Namespace, show: Show) -> dict[str, object]:
    """Measure `again`."""
    return again(show)


CASES: dict[str, Callable[[argparse.Namespace, Show], dict[str, object]]] = {
    "schedules": all_schedules,
    "links": all_links,
    "run": run,
    "bits": fewer_bits,
    "again": made_again,
}


def main() -> None:
    """Measure the cases and print their tables."""
    parser = benchmark_parser("groups", __doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--repeats", type=int, default=100, help="schedules timed (default: 100)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each strategy of a group runs (default: 1)")
    parser.add_argument(
        "--only", type=numbers, default=range(len(MIXES) + 1), help="mixes of links, as 0-2 (default: all)"
    )
    parser.add_argument("--layers", type=Path, help="file of layers of `run`")
    parser.add_argument("--members", type=int, default=2, help="members of `run` (default: 2)")
    parser.add_argument(
        "--strategy", type=strategies, default=STRATEGY_NAMES, help="of `run`, as flow,dynacomm (default: all)"
    )
    parser.add_argument(
        "--peers",
        type=megabytes,
        default=(),
        help="sizes of DDP's buckets beside `run`, in megabytes, as 1,25 (default: none)",
    )
    parser.add_argument(
        "--flower", type=Path, help="Python that has flwr, to measure Flower beside the others (default: none)"
    )
    parser.add_argument(
        "--mxnet", type=Path, help="Python that has mxnet, to measure its two parameter servers too (default: none)"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if "run" in arguments.cases and arguments.layers is None:
        parser.error("`run` takes a file of layers; give --layers")
    if not 1 <= arguments.members <= MOST_MEMBERS:
        parser.error(f"--members is {arguments.members}; it must be 1 to {MOST_MEMBERS}")
    if not set(arguments.only) <= set(range(len(MIXES) + 1)):
        parser.error(f"--only names no mix; they are 0 to {len(MIXES)}")
    console = Console(width=150)
    console.print(machine())
    rows = {name: CASES[name](arguments, console.print) for name in arguments.cases}
    write_json(arguments.json, "groups", **rows)


def foreign_of(arguments: argparse.Namespace) -> dict[ForeignPeer, Path]:
    """Return the peers that run under a Python of their own, of those that are given."""
    pythons = {FLOWER: arguments.flower, **dict.fromkeys(MXNET, arguments.mxnet)}
    return {peer: python for peer, python in pythons.items() if python is not None}


def strategies(text: str) -> tuple[str, ...]:
    """Read names of strategies."""
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in STRATEGY_NAMES]:
        raise argparse.ArgumentTypeError(f"there is no strategy {unknown[0]!r}; there are {', '.join(STRATEGY_NAMES)}")
    return names


def megabytes(text: str) -> tuple[float, ...]:
    """Read sizes of buckets."""
    return tuple(map(float, text.split(",")))


if __name__ == "__main__":
    main()
