"""What adapting is worth on a real link that changes: `python -m benchmarks.adaptation_link [--data ../shared/data]`.

Real agent and trainer in two network namespaces, the agent on a tenth of a core, and the link between them follows a recorded
trace second by second. Every run has the same number of steps and begins with the trace: one with the decision engine, from
the planner's choice for the trace's first seconds, and one with each of these deployments held: that first choice, JointDNN's,
and the one that the simulator finds best of all over this trace. A ratio below 1 says that the engine was faster. What the
simulator says of the same runs stands beside.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.adaptation import links
from benchmarks.machine import machine
from benchmarks.prediction import MOST_STALENESS, Bench, bench, flags
from benchmarks.report import Spread, write_json
from shared.planning import PROBE_SECONDS, Deployment, Link, SearchSpace, Trace, compare, profile_to_json, simulate

TRACES = ("TMobile-LTE-short", "Verizon-LTE-short", "ghent_report_bus_0001")
BITS = (8, 32)
"""The engine's own choice: fewer bits cost accuracy."""
SPACE = SearchSpace(BITS, MOST_STALENESS)
EDGE_SHARE = 0.1
"""Of a core's time: so slow that the best cut is not the same over every trace."""
EPOCHS = 1000
"""More than a run has steps for."""
RUN_SECONDS = 40.0
"""About how long a run is made, by the simulator."""
REPEATS = 2
PLANNERS = ("greedy", "best-fixed", "jointdnn")


@dataclass(frozen=True)
class Row:
    """One way to train over one trace."""

    trace: str
    way: str
    start: Deployment
    simulated_seconds: float
    seconds: Spread
    changes: int
    """That the simulator sees."""


def rates_from(trace: Trace, begin: float, seconds: float) -> list[tuple[float, float]]:
    """Means over whole seconds of the trace, which repeats, from `begin` on, as the shaper takes them."""
    return [(float(second), trace.mean_between(begin + second, begin + second + 1)) for second in range(int(seconds))]


def trained_seconds(ready: Bench, recorded: Link, deployment: Deployment, steps: int, *more: str) -> float:
    """One run over the trace, from its first second to the run's last step."""
    lasts = 10 * RUN_SECONDS
    ways = [rates_from(trace, PROBE_SECONDS, lasts) for trace in (recorded.uplink, recorded.downlink)]
    with ready.link.replay(*ways):
        ends = ready.agent.run([*flags(ready.address, deployment, steps), f"training.epochs={EPOCHS}", *more]).ends
    return ends[-1] - ends[0]


def measure(ready: Bench, profile: Path, name: str, recorded: Link) -> list[Row]:
    """Every way over one trace, in turn, again and again."""
    found = {result.planner: result.run for result in compare(ready.profile, recorded, SPACE, RUN_SECONDS, PLANNERS)}
    greedy, best, jointdnn = (run for run in found.values() if run is not None)
    held = simulate(ready.profile, recorded, greedy.start, RUN_SECONDS, begin=PROBE_SECONDS)
    ways = {"the engine": greedy, "its start, held": held, "JointDNN's": jointdnn, "best fixed": best}
    engine = [f"engine.profile={profile}", f"engine.bits={list(BITS)}", f"engine.max_staleness={MOST_STALENESS}"]
    steps = int(greedy.steps)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, run in ways.items():
            more = engine if run is greedy else []
            taken[way].append(trained_seconds(ready, recorded, run.start, steps, *more))
            print(name, way, run.start, steps, f"{taken[way][-1]:.1f} s", sep=", ", file=sys.stderr, flush=True)
    return [
        Row(name, way, run.start, run.seconds_per_100_steps * steps / 100, Spread.of(taken[way]), len(run.switches))
        for way, run in ways.items()
    ]


def table(rows: list[Row]) -> Table:
    """For people."""
    drawn = Table(
        "trace", "deployment", "begins with", "changes", "simulated, s", "measured, s", "engine's time / this one's"
    )
    ours = {row.trace: row.seconds.median for row in rows if row.way == "the engine"}
    for row in rows:
        drawn.add_row(
            row.trace,
            row.way,
            str(row.start),
            str(row.changes),
            f"{row.simulated_seconds:.1f}",
            row.seconds.show(1.0, 1),
            f"{ours[row.trace] / row.seconds.median:.2f}",
        )
    return drawn


def main() -> None:
    """Measure every trace and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptation_link", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where traces/ lies")
    parser.add_argument("--trace", choices=TRACES, action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    recorded = links(arguments.data)
    with bench(EDGE_SHARE) as ready, tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
        profile = Path(folder, "profile.json")
        profile.write_text(profile_to_json(ready.profile))
        rows = [row for name in arguments.trace or TRACES for row in measure(ready, profile, name, recorded[name])]
    console = Console(width=150)
    console.print(
        f"{machine()}; seconds of a run, median (quartiles) of {REPEATS}; the agent on {EDGE_SHARE:g} of a core"
    )
    console.print(table(rows))
    write_json(arguments.json, "adaptation_link", profile=ready.profile, rows=rows)


if __name__ == "__main__":
    main()
