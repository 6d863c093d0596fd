"""The paper's claim (paper 000, Fig. 17): seconds per 100 batches of our planner, JointDNN and edge-only, on its devices.

    python -m benchmarks.planning.paper_fig17 --data ../shared/data [--minutes N] [--json PATH]

Its tables for VGG19 and Chair (paper_profiles.py) over 4G (their Ghent set, bus), WiFi (every WiFi trace of the WiFi
pairs, one after the other) and fast constant links, both directions alike, in the simulator. The paper reports up to 97.6 %
less time than the baselines on the Pi, over several models; only these two have public tables.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.planning.paper_profiles import DEVICES, chair_profile, vgg19_profile
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import LinkTrace, SearchSpace, Setting, Trace, compare, load_trace

PLANNERS = ("greedy", "jointdnn", "edge-only")
SPACE = SearchSpace(bits=(8, 16, 32), allow_edge_only=True)


@dataclass(frozen=True)
class Row:
    """One model on one device over one network."""

    model: str
    device: str
    network: str
    seconds_per_100_steps: dict[str, float]
    start: str
    """Deployment that our planner began with."""

    @property
    def reduction(self) -> dict[str, float]:
        """Part of each baseline's time that our planner saves."""
        ours = self.seconds_per_100_steps["greedy"]
        return {name: 1.0 - ours / self.seconds_per_100_steps[name] for name in PLANNERS[1:]}


def joined(traces: list[Trace]) -> Trace:
    """Traces one after the other."""
    durations = [later - earlier for trace in traces for earlier, later in itertools.pairwise(trace.times_seconds)]
    return Trace.of_durations(durations, [rate for trace in traces for rate in trace.bits_per_second])


def networks(data: Path) -> dict[str, Trace]:
    """The networks by name, the slowest first."""
    wifi = [load_trace(path) for path in sorted((data / "traces/wifi/Traces").glob("*_wifi.csv"))]
    ghent = load_trace(data / "traces/ghent_report_bus_0001.log")
    all_wifi = joined(wifi)
    return {
        f"4G, {ghent.mean / 1e6:.0f} Mbit/s": ghent,
        f"WiFi, {all_wifi.mean / 1e6:.0f} Mbit/s": all_wifi,
        "100 Mbit/s": Trace.constant(1e8),
        "1 Gbit/s": Trace.constant(1e9),
    }


def measure(data: Path, seconds: float) -> list[Row]:
    """Every model, device and network."""
    rows = []
    for (model, make), device in itertools.product({"VGG19": vgg19_profile, "Chair": chair_profile}.items(), DEVICES):
        profile = make(data / "device_profiles", device)
        for network, trace in networks(data).items():
            runs = compare(Setting(profile, [LinkTrace(trace, trace)], SPACE, seconds), PLANNERS)
            times = {planner: run.seconds_per_100_steps for planner, run in runs.items()}
            rows.append(Row(model, device, network, times, str(runs[PLANNERS[0]].start)))
    return rows


def table(rows: list[Row]) -> Table:
    """The rows as a table for people."""
    drawn = Table(title="Seconds per 100 batches of 32", title_justify="left")
    for heading in ("model", "device", "network"):
        drawn.add_column(heading)
    for heading in (*PLANNERS, "less than JointDNN", "less than edge-only"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("our planner begins with")
    for row in rows:
        times = [f"{row.seconds_per_100_steps[name]:.1f}" for name in PLANNERS]
        reductions = [f"{row.reduction[name]:.1%}" for name in PLANNERS[1:]]
        drawn.add_row(row.model, row.device, row.network, *times, *reductions, row.start)
    return drawn


def main() -> None:
    """Parse, simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.paper_fig17", "A table like Fig. 17.")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of traces and device profiles"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="length of each run (default: 30)")
    arguments = parser.parse_args()
    rows = measure(arguments.data, arguments.minutes * 60)
    console = Console(width=160)
    console.print(table(rows))
    for device in DEVICES:
        best = max((max(row.reduction.values()) for row in rows if row.device == device), default=math.nan)
        console.print(f"{device}: up to {best:.1%} less time than a baseline")
    write_json(arguments.json, "paper_fig17", rows=rows)


if __name__ == "__main__":
    main()
