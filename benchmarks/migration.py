"""Pause of training when the cut moves: `python -m benchmarks.migration [--json PATH]`.

Real agent and trainer in two network namespaces. In a run the cut moves from behind the first block to before the last and
back, again and again, which carries blocks down and up. A pause is what the steps around a move took more than as many steps
far from one. Beside it stands Eq. 13 of paper 000: the bytes of the blocks over the rate that plain TCP carries, which is
the least that it can be.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.net import Measure, linked_namespaces
from benchmarks.prediction import flags
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.deployed import Deployed
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_across
from benchmarks.support.report import Spread, write_json
from benchmarks.support.series import Trainings, trainings
from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.config import load_config

LINKS = ((100e6, 100e6, 0.0), (100e6, 100e6, 0.04), (20e6, 50e6, 0.0), (20e6, 50e6, 0.04))
"""Bits per second up and down, and seconds of round trip."""
STALENESS = (0, 5)
NEAR, FAR = 1, 4
APART_STEPS = 24
"""Between two moves."""
PAIRS = 6
"""Pairs of a move down and a move up."""
TCP_SECONDS = 2.0


@dataclass(frozen=True)
class Row:
    """The moves in one direction on one link."""

    uplink: float
    downlink: float
    round_trip_seconds: float
    staleness: int
    direction: str
    block_bytes: int
    carried_seconds: float
    """Eq. 13."""
    pause_seconds: Spread


def moved_bytes() -> int:
    """The size of the blocks between the two cuts, as they travel."""
    held = Experiment(load_config(EdgeConfig, None, flags("localhost:1", Deployed(FAR, 0, 32), 1), environ={})).held
    return sum(tensor.nbytes for index in range(NEAR, FAR) for tensor in held.block_tensors(index).values())


def pauses(ends: Sequence[float], staleness: int) -> tuple[list[float], list[float]]:
    """Seconds lost to each move down, and to each move up."""
    lost: tuple[list[float], list[float]] = ([], [])
    steps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    around = 2 * (staleness + 1) + 1
    for move in range(2 * PAIRS):
        asked = (move + 1) * APART_STEPS - 1
        before, after = (
            statistics.median(steps[begin : begin + APART_STEPS - around])
            for begin in (asked - APART_STEPS + around, asked + around)
        )
        # What is in flight when the move is asked for ends at the old cut's pace.
        usual = (staleness + 1) * before + (around - staleness - 1) * after
        lost[move % 2].append(sum(steps[asked : asked + around]) - usual)
    return lost


def measure(agent: Trainings, address: str, staleness: int) -> tuple[Spread, Spread]:
    """Down and up."""
    moves = {(move + 1) * APART_STEPS: NEAR if move % 2 else FAR for move in range(2 * PAIRS)}
    steps = (2 * PAIRS + 1) * APART_STEPS + 1
    ends = agent.run(flags(address, Deployed(NEAR, staleness, 8), steps), moves).ends
    down, up = pauses(ends, staleness)
    return Spread.of(down), Spread.of(up)


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    drawn = Table("link, Mbit/s", "round trip, ms", "K", "blocks go", "MB", "Eq. 13, ms", "pause, ms", "pause / Eq. 13")
    for row in rows:
        drawn.add_row(
            f"{row.uplink / 1e6:.0f} / {row.downlink / 1e6:.0f}",
            f"{row.round_trip_seconds * 1e3:.0f}",
            str(row.staleness),
            row.direction,
            f"{row.block_bytes / 1e6:.1f}",
            f"{row.carried_seconds * 1e3:.0f}",
            row.pause_seconds.show(1e3, 0),
            f"{row.pause_seconds.median / row.carried_seconds:.2f}",
        )
    return drawn


def main() -> None:
    """Measure every link, print, and write the figures if asked to."""
    parser = benchmark_parser("migration", __doc__)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for uplink, downlink, round_trip in LINKS:
        with (
            linked_namespaces("moves", delay_seconds=round_trip) as link,
            trainer_across(link) as address,
            trainings(lambda args, link=link, **kwargs: link.edge.popen(args, **kwargs)) as agent,
        ):
            link.shape(uplink, downlink)
            plain = Measure(link)
            rates = plain.downlink(TCP_SECONDS), plain.uplink(TCP_SECONDS)
            carried_bytes = moved_bytes()
            for staleness in STALENESS:
                taken = measure(agent, address, staleness)
                for direction, rate, pause in zip(("down", "up"), rates, taken, strict=True):
                    seconds = 8 * carried_bytes / rate
                    row = Row(uplink, downlink, round_trip, staleness, direction, carried_bytes, seconds, pause)
                    print(row, file=sys.stderr, flush=True)
                    rows.append(row)
    console = Console(width=150)
    console.print(f"{machine()}; median (quartiles) of {PAIRS}")
    console.print(table(rows))
    write_json(arguments.json, "migration", rows=rows)


if __name__ == "__main__":
    main()
