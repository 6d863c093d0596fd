"""Gain of adapting on recorded links: the engine against every fixed deployment, JointDNN and the lower bound of any
run.

    python -m benchmarks.planning.adaptation --data ../shared/data [--minutes N] [--round-trip 40ms] [--profile FILE[:BITS] ...]
        [--json PATH]

In the simulator, which drives the daemon's own engine: T-Mobile and Verizon LTE, the Ghent bus log, and each WiFi and cellular
trace of the WiFi pairs, repeated until the run is over; with 0 minutes each trace once. Profiles: the authors' VGG19 on Pi and
TX2, the made-up devices of benchmarks.planning.round_trips, and any file given. Ratios are times: below 1 the engine is faster.
The best fixed deployment is the best of all that the engine may choose from; no run can take less than the lower bound.
"start kept" is the deployment that the engine began with, kept: what lies between it and the best fixed one is what five
seconds of probing did not show. "foresight" is what one who knows the whole trace could gain over the best fixed
deployment, paying for migrations and for filling the pipeline: by the cost model, second by second.
"""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.planning.bound import least_seconds_per_100_steps
from benchmarks.planning.paper_profiles import DEVICES, vgg19_profile
from benchmarks.planning.round_trips import DEVICES as MADE_UP
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import (
    FLOAT32_BITS,
    PROBE_SECONDS,
    LinkTrace,
    Profile,
    Question,
    SearchSpace,
    Setting,
    compare,
    load_profile,
    load_trace,
    parse_seconds,
    simulate,
)
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.planners.plan import migration_seconds

MAHIMAHI = ("TMobile-LTE-short", "Verizon-LTE-short")
AHEAD_SECONDS = 10
"""Over which one with foresight takes the mean of the rates to cost a migration."""


@dataclass(frozen=True)
class Row:
    """One profile over one trace; times in seconds per 100 steps."""

    profile: str
    trace: str
    seconds: dict[str, float]
    start: str
    start_seconds: float
    """Seconds of the deployment that the engine began with, kept."""
    best_fixed: str
    least_seconds: float
    """The lower bound of any run."""
    changes: int
    foresight_gain: float

    @property
    def against_best_fixed(self) -> float:
        """Our time over the best fixed deployment's."""
        return self.seconds["greedy"] / self.seconds["best-fixed"]

    @property
    def against_start(self) -> float:
        """Our time over that of the deployment that the engine began with, kept."""
        return self.seconds["greedy"] / self.start_seconds

    @property
    def of_lower_bound(self) -> float:
        """The lower bound of any run's time over ours."""
        return self.least_seconds / self.seconds["greedy"]


def links(data: Path) -> dict[str, LinkTrace]:
    """Every recorded link by name; one direction serves both where only one was recorded."""
    traces = data / "traces"
    found = {
        name: LinkTrace(load_trace(traces / f"mahimahi/{name}.up.xz"), load_trace(traces / f"mahimahi/{name}.down.xz"))
        for name in MAHIMAHI
    }
    single = [traces / "ghent_report_bus_0001.log", *sorted((traces / "wifi/Traces").glob("*.csv"))]
    return found | {path.stem: LinkTrace(trace, trace) for path in single for trace in [load_trace(path)]}


def foresight_gain(profile: Profile, link: LinkTrace, space: SearchSpace) -> float:
    """Steps of one with foresight over those of the best fixed deployment, minus 1, over the trace once, by the cost model.

    The best way through cuts and seconds, by dynamic programming over the steps done, each second with the bits and the K that
    are best in it. A change of the cut loses the blocks' way and the filling of the pipeline.
    """
    setting, choices = Setting(profile, [link], space, link.duration_seconds), space.best_staleness(profile)
    each = [listed_pairs(profile, space, (staleness,)) for staleness in choices]
    found = each[0]
    cuts = np.unique(found.cuts)
    moments = np.arange(PROBE_SECONDS, max(link.duration_seconds, PROBE_SECONDS + 1) - 1)
    done, fixed = np.zeros(len(cuts)), np.zeros((len(choices), len(found)))
    for moment in moments.tolist():
        now, ahead = (setting.at([link.rates_between(moment, moment + span)]) for span in (1.0, AHEAD_SECONDS))
        held = np.array([1.0 / one.loads.seconds(now) for one in each])
        all_speeds, all_filling = held.max(axis=0), found.loads.at(now).filling()
        best = np.array([np.flatnonzero(found.cuts == cut)[all_speeds[found.cuts == cut].argmax()] for cut in cuts])
        speeds, filling = all_speeds[best], all_filling[best]
        moving = [migration_seconds(Question(profile, from_cut=int(cut)), cuts, ahead) for cut in cuts]
        lost_seconds = np.array(moving) + filling
        np.fill_diagonal(lost_seconds, 0.0)
        done = (done[:, None] - lost_seconds * np.maximum(speeds[:, None], speeds[None, :])).max(axis=0) + speeds
        fixed += held
    return float(done.max() / fixed.max() - 1.0)


def measure(name: str, profile: Profile, trace: str, link: LinkTrace, space: SearchSpace, seconds: float) -> Row:
    """One row."""
    runs = compare(Setting(profile, [link], space, seconds))
    ours, best_fixed = runs["greedy"], runs["best-fixed"]
    times = {planner: run.seconds_per_100_steps for planner, run in runs.items()}
    kept = simulate(profile, [link], ours.start, seconds, begin=PROBE_SECONDS).seconds_per_100_steps
    least, gain = least_seconds_per_100_steps(profile, link, space, seconds), foresight_gain(profile, link, space)
    return Row(name, trace, times, str(ours.start), kept, str(best_fixed.start), least, len(ours.switches), gain)


def table(rows: list[Row]) -> Table:
    """The rows as a table for people."""
    drawn = Table(title="Seconds per 100 steps", title_justify="left")
    drawn.add_column("trace")
    planners = ("greedy", "best-fixed", "jointdnn", "edge-only")
    ratios = ("ours / best fixed", "ours / start kept", "lower bound / ours")
    for heading in (*planners, "lower bound", *ratios, "foresight", "changes"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            row.trace,
            *(f"{row.seconds[planner]:.1f}" for planner in planners),
            f"{row.least_seconds:.1f}",
            f"{row.against_best_fixed:.3f}",
            f"{row.against_start:.3f}",
            f"{row.of_lower_bound:.1%}",
            f"+{row.foresight_gain:.1%}",
            str(row.changes),
        )
    return drawn


def summary(rows: list[Row]) -> str:
    """The goals and how often they were met."""
    against, of = [row.against_best_fixed for row in rows], [row.of_lower_bound for row in rows]
    kept = [row.against_start for row in rows]
    return (
        f"{len(rows)} traces: ours / best fixed median {statistics.median(against):.3f}, worst {max(against):.3f}; "
        f"faster than it on {sum(ratio < 1 for ratio in against)}, within 3 % on {sum(ratio <= 1.03 for ratio in against)}; "
        f"ours / start kept median {statistics.median(kept):.3f}, best {min(kept):.3f}, worst {max(kept):.3f}; "
        f"lower bound over ours median {statistics.median(of):.1%}, at least 90 % on {sum(part >= 0.9 for part in of)}; "
        f"foresight would gain a median of {statistics.median(row.foresight_gain for row in rows):.1%} over the best fixed"
    )


def main() -> None:
    """Parse, simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.adaptation", "What adapting is worth.")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of traces and device profiles"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="length of a run; 0: the trace once (default: 30)")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="FILE[:BITS]",
        help="measure this profile too; BITS are those of the error gradients (default: 32)",
    )
    parser.add_argument("--bits", default="8,16,32", help="bit widths to choose from (default: 8,16,32)")
    parser.add_argument(
        "--no-edge-only", action="store_true", help="let neither the engine nor JointDNN choose edge-only"
    )
    parser.add_argument("--round-trip", default="0ms", help="of every link (default: 0ms)")
    arguments = parser.parse_args()
    profiles = {f"VGG19 on {device}": vgg19_profile(arguments.data / "device_profiles", device) for device in DEVICES}
    profiles |= MADE_UP
    for path, _, gradient_bits in (given.partition(":") for given in arguments.profile):
        profiles[Path(path).stem] = load_profile(Path(path)).with_gradient_bits(int(gradient_bits or FLOAT32_BITS))
    space = SearchSpace(tuple(map(int, arguments.bits.split(","))), allow_edge_only=not arguments.no_edge_only)
    round_trip_seconds = parse_seconds(arguments.round_trip, "--round-trip")
    recorded = {
        name: replace(link, round_trip_seconds=round_trip_seconds) for name, link in links(arguments.data).items()
    }
    console = Console(width=180)
    all_rows = []
    for name, profile in profiles.items():
        rows = [
            measure(name, profile, trace, link, space, arguments.minutes * 60 or link.duration_seconds)
            for trace, link in recorded.items()
        ]
        console.print(f"\n{name}")
        console.print(table(rows))
        console.print(summary(rows))
        all_rows += rows
    write_json(arguments.json, "adaptation", rows=all_rows)


if __name__ == "__main__":
    main()
