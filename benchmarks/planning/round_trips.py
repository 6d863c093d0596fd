"""Performance of the engine over a long way: its time over that of the best deployment that is kept, edge-only among
them.

    python -m benchmarks.planning.round_trips [--minutes N] [--json PATH]

In the simulator, which drives the daemon's own engine: three devices, two links, round trips of 0 to 80 ms. Each run begins
twice: with the plan for the link as it is, and with the plan for the same rates and no round trip, which the engine has to
leave by what it measures. The goal is at most 1.05 in every row. The devices are made up; the first is one on which a step
without batches in flight is the fastest over a short way, and five in flight are over a long one.
"""

import itertools
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.planning.bound import least_seconds_per_100_steps
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import (
    PROBE_SECONDS,
    Engine,
    Linear,
    LinkTrace,
    Profile,
    ProfiledBlock,
    Rates,
    SearchSpace,
    Setting,
    Trace,
    compare,
    first_layout,
    greedy,
    pair_profile,
    simulate,
)

GOAL = 1.05
MBIT = 1e6
SPACE = SearchSpace((8, 32))
LINKS = {"slow": (5 * MBIT, 20 * MBIT), "fast": (100 * MBIT, 100 * MBIT)}
"""Bits per second up and down."""
ROUND_TRIPS_SECONDS = (0.0, 0.020, 0.040, 0.080)


def device(
    edge: tuple[float, ...],
    serial: tuple[float, ...],
    cloud: tuple[float, ...],
    feature_bytes: tuple[float, ...],
    block_bytes: float,
) -> Profile:
    """A device by its seconds from cut 1 on, the last with all blocks; bytes at the cuts that are split."""
    return pair_profile(
        model="made up",
        batch_size=32,
        blocks=tuple(ProfiledBlock(f"block{index}", block_bytes) for index in range(len(edge))),
        feature_bytes=(None, *feature_bytes, None),
        gradient_bytes=(None, *feature_bytes, None),
        edge_seconds=(None, *edge),
        cloud_seconds=(None, *cloud, 0.0),
        encode=Linear(0.0005, 1e-9),
        min_bits=None,
        max_staleness=5,
        serial_edge_seconds=(None, *serial),
    )


DEVICES = {
    "a replay is dear": device(
        edge=(0.0335, 0.060, 0.090, 0.200),
        serial=(0.012, 0.040, 0.070, 0.150),
        cloud=(0.004, 0.003, 0.002),
        feature_bytes=(14e3, 8e3, 4e3),
        block_bytes=1e5,
    ),
    "large features": device(
        edge=(0.020, 0.060, 0.120, 0.400),
        serial=(0.014, 0.042, 0.084, 0.280),
        cloud=(0.020, 0.015, 0.010),
        feature_bytes=(400e3, 200e3, 50e3),
        block_bytes=2e5,
    ),
    "best alone": device(
        edge=(0.030, 0.040, 0.050, 0.060),
        serial=(0.022, 0.030, 0.038, 0.045),
        cloud=(0.010, 0.008, 0.006),
        feature_bytes=(300e3, 150e3, 75e3),
        block_bytes=5e4,
    ),
}


@dataclass(frozen=True)
class Row:
    """One device over one link; times in seconds per 100 steps."""

    device: str
    link: str
    round_trip_seconds: float
    best_fixed: str
    best_fixed_seconds: float
    planned_seconds: float
    """The engine's, from the plan for the link as it is."""
    surprised_seconds: float
    """The engine's, from the plan for the same rates and no round trip."""
    surprised_start: str
    least_seconds: float
    """The lower bound of any run."""

    @property
    def worst_ratio(self) -> float:
        """The engine's longer time over the best fixed deployment's."""
        return max(self.planned_seconds, self.surprised_seconds) / self.best_fixed_seconds


def measure(name: str, link_name: str, round_trip_seconds: float, seconds: float) -> Row:
    """One row."""
    profile, (up, down) = DEVICES[name], LINKS[link_name]
    link = LinkTrace(Trace.constant(up), Trace.constant(down), round_trip_seconds)
    setting = Setting(profile, [link], SPACE, seconds)
    planned, best = compare(setting, ("greedy", "best-fixed")).values()
    start = first_layout(setting.question, setting.at([Rates(up, down)]))
    expected_steps = (
        seconds / greedy(setting.question, setting.at([Rates(up, down, round_trip_seconds)])).seconds_per_step
    )
    engine = Engine(profile, SPACE, start, total_steps=expected_steps)
    surprised = simulate(profile, [link], start, seconds, engine, begin=PROBE_SECONDS)
    return Row(
        name,
        link_name,
        round_trip_seconds,
        str(best.start),
        best.seconds_per_100_steps,
        planned.seconds_per_100_steps,
        surprised.seconds_per_100_steps,
        str(start),
        least_seconds_per_100_steps(profile, link, SPACE, seconds),
    )


def table(rows: list[Row]) -> Table:
    """The rows as a table for people."""
    drawn = Table(title="Seconds per 100 steps", title_justify="left")
    for heading in ("device", "link", "round trip, ms", "best fixed"):
        drawn.add_column(heading)
    for heading in ("its time", "engine", "engine, not told", "ratio of the worse", f"at most {GOAL}", "lower bound"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            row.device,
            row.link,
            f"{row.round_trip_seconds * 1e3:.0f}",
            row.best_fixed,
            f"{row.best_fixed_seconds:.2f}",
            f"{row.planned_seconds:.2f}",
            f"{row.surprised_seconds:.2f}",
            f"{row.worst_ratio:.3f}",
            "kept" if row.worst_ratio <= GOAL else "MISSED",
            f"{row.least_seconds:.2f}",
        )
    return drawn


def main() -> None:
    """Simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.round_trips", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of a run (default: 30)")
    arguments = parser.parse_args()
    rows = [measure(*which, arguments.minutes * 60) for which in itertools.product(DEVICES, LINKS, ROUND_TRIPS_SECONDS)]
    console = Console(width=170)
    console.print(table(rows))
    worst = max(row.worst_ratio for row in rows)
    console.print(f"worst ratio {worst:.3f} (goal {GOAL}: {'kept' if worst <= GOAL else 'MISSED'})")
    write_json(arguments.json, "round_trips", minutes=arguments.minutes, rows=rows)


if __name__ == "__main__":
    main()
