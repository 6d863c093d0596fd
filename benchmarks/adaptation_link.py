"""Gain of adapting on a real link that changes: `python -m benchmarks.adaptation_link [--data ../shared/data]`.

Real agent and trainer in two network namespaces, the agent on a tenth of a core, and the link between them follows a recorded
trace second by second. Every run over a trace has the same number of steps, and the trace begins when the first of them is
done: one run with the decision engine, from the planner's choice for the trace's first seconds, and one with each of these
deployments held: that first choice, JointDNN's, and at every cut the one that the simulator finds best there over this trace.
The best of those is the best fixed one. At the last cut all blocks are on the edge, and only what the loss needs crosses the
link. "Without trainer" is edge-only training wholly in the agent's process, without a link; it does not depend on the trace, so
its time per step is measured once, over fewer steps, and scaled to the trace's. A ratio below 1 says that the engine was the
faster one. What the simulator says of the same runs stands beside.
"""

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.planning.adaptation import links
from benchmarks.prediction import Bench, bench, flags
from benchmarks.rivals.pair import edge_only
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.deployed import Deployed
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json
from edge_agent.planning import (
    PROBE_SECONDS,
    Layout,
    LinkTrace,
    Profile,
    Question,
    Run,
    SearchSpace,
    Setting,
    Trace,
    compare,
    conditions_of,
    simulate,
)

TRACES = ("TMobile-LTE-short", "Verizon-LTE-short", "13_3_wifi", "ghent_report_bus_0001")
"""13_3_wifi: of the WiFi recordings that are dead (below 0.1 Mbit/s) for less than a fifth of their seconds, the one whose
rate varies most from second to second, by a standard deviation of 1.3 times its mean: some 50 Mbit/s for the first quarter
of a minute, about 1 Mbit/s for the next, 5 to 20 Mbit/s after it."""
BITS = (8, 32)
"""The engine's own choice: fewer bits cost accuracy."""
SPACE = SearchSpace(BITS, allow_edge_only=True)
EDGE_SHARE = 0.1
"""The edge's share of a core's time: so slow that the best cut is not the same over every trace."""
NETWORK = (
    "model.kwargs={width=64}",
    'deployment.downlink_codec="uniform8"',
    "training.epochs=1000",  # more than a run has steps for
)
"""Large enough that such a device is better off with help, by most of these links."""
GRADIENT_BITS = 8
RUN_SECONDS = 40.0
"""About how long a run is made, by the simulator."""
ALONE_SECONDS = 15.0
"""About how long edge-only is measured, by the profile."""
REPEATS = 2


@dataclass(frozen=True)
class Way:
    """One way to train over one trace."""

    name: str
    run: Run
    """As the simulator sees it."""


@dataclass(frozen=True)
class Row:
    """The time that a way to train took."""

    trace: str
    way: str
    start: Layout
    simulated_seconds: float
    seconds: Spread
    changes: int
    """The changes that the simulator sees."""
    against: float
    """The engine's time over this one's."""


def held(profile: Profile, recorded: LinkTrace, starts: dict[str, Layout], seconds: float) -> list[Way]:
    """`starts` by name, and the best deployment at each cut, each held over the trace; one that is several things once."""
    best = [
        compare(Setting(profile, [recorded], replace(SPACE, cuts=(cut,)), seconds), ("best-fixed",))["best-fixed"]
        for cut in range(1, len(profile) + 1)
    ]
    runs = [run for run in best if run is not None]
    named = [
        *starts.items(),
        *((f"best at cut {run.start.tiles[0].stop}", run.start) for run in runs),
        ("best fixed", max(runs, key=lambda run: run.steps).start),
    ]
    return [
        Way(
            ", ".join(name for name, deployment in named if deployment == each),
            simulate(profile, [recorded], each, seconds, begin=PROBE_SECONDS),
        )
        for each in dict.fromkeys(deployment for _, deployment in named)
    ]


def rates_from(trace: Trace, begin: float, seconds: float) -> list[tuple[float, float]]:
    """Means over whole seconds of the trace, which repeats, from `begin` on, as the shaper takes them."""
    return [(float(second), trace.mean_between(begin + second, begin + second + 1)) for second in range(int(seconds))]


@dataclass(frozen=True)
class Measurement:
    """The measurement to make on the pair."""

    ready: Bench
    file: Path
    """The pair's profile, for the agent's engine."""
    run_seconds: float
    """About how long a run is made, by the simulator."""
    repeats: int

    @property
    def profile(self) -> Profile:
        """With error gradients as they are sent."""
        return self.ready.profile.with_gradient_bits(GRADIENT_BITS)

    def flags(self, deployment: Deployed, steps: int) -> list[str]:
        """The agent's settings."""
        return [*flags(self.ready.address, deployment, steps), *NETWORK]

    def linked_seconds(self, recorded: LinkTrace, deployment: Deployed, steps: int, *more: str) -> float:
        """One run over the trace, from its first step's end to its last's."""
        lasts = 10 * self.run_seconds
        ways = [rates_from(trace, PROBE_SECONDS, lasts) for trace in (recorded.uplink, recorded.downlink)]
        link, settings = self.ready.link, [*self.flags(deployment, steps), *more]
        link.shape(*(way[0][1] for way in ways))
        with ExitStack() as stack:
            # The session opens over the first second's rates; the trace goes on when training has begun.
            begun = partial(stack.enter_context, link.replay(*ways))
            ends = self.ready.agent.run(settings, on_begun=begun).ends
        return ends[-1] - ends[0]

    def alone_seconds_per_step(self) -> list[float]:
        """Seconds of each step of edge-only runs."""
        steps = ceil(ALONE_SECONDS / edge_only(Question(self.profile), conditions_of(self.profile)).seconds_per_step)
        taken = []
        for _ in range(self.repeats):
            ends = self.ready.agent.run(self.flags(Deployed(1, 0, 32), steps + 1), alone=True).ends
            taken.append((ends[-1] - ends[0]) / steps)
            print("without trainer", steps, f"{taken[-1]:.3f} s a step", sep=", ", file=sys.stderr, flush=True)
        return taken

    def rows(self, name: str, recorded: LinkTrace, alone_seconds_per_step: Spread) -> list[Row]:
        """Every way over one trace, in turn, again and again."""
        planners = ("greedy", "jointdnn", "edge-only")
        found = compare(Setting(self.profile, [recorded], SPACE, self.run_seconds), planners)
        greedy, jointdnn, alone = found.values()
        starts = {"its start": greedy.start, "JointDNN's": jointdnn.start}
        engine, without_link = Way("the engine", greedy), Way("without trainer", alone)
        ways = [engine, *held(self.profile, recorded, starts, self.run_seconds)]
        decides = [f"engine.profile={self.file}", f"engine.bits={list(BITS)}", "engine.allow_edge_only=true"]
        steps = int(greedy.steps)
        taken: dict[Way, list[float]] = {way: [] for way in ways}
        for _ in range(self.repeats):
            for way in ways:
                more = decides if way is engine else []
                taken[way].append(self.linked_seconds(recorded, Deployed.of(way.run.start), steps, *more))
                shown = f"{taken[way][-1]:.1f} s (simulated: {seconds_of(way.run, steps):.1f})"
                print(name, way.name, way.run.start, steps, shown, sep=", ", file=sys.stderr, flush=True)
        spreads = {way: Spread.of(seconds) for way, seconds in taken.items()}
        spreads[without_link] = alone_seconds_per_step.scaled(steps - 1)
        return [
            Row(
                name,
                way.name,
                way.run.start,
                seconds_of(way.run, steps),
                seconds,
                len(way.run.switches),
                spreads[engine].median / seconds.median,
            )
            for way, seconds in spreads.items()
        ]


def seconds_of(run: Run, steps: int) -> float:
    """So many steps of a simulated run."""
    return run.seconds_per_100_steps * steps / 100


def table(name: str, rows: list[Row]) -> Table:
    """One trace's rows, for people."""
    drawn = Table(
        "deployment", "begins with", "changes", "simulated, s", "measured, s", "engine's time / this one's", title=name
    )
    for row in rows:
        drawn.add_row(
            row.way,
            str(row.start),
            str(row.changes),
            f"{row.simulated_seconds:.1f}",
            row.seconds.show(1.0, 1),
            f"{row.against:.2f}",
        )
    return drawn


def main() -> None:
    """Measure, and print and write each trace when it is done."""
    parser = benchmark_parser("adaptation_link", __doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where traces/ lies")
    parser.add_argument("--trace", choices=TRACES, action="append", help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="about how long a run is (default: 40)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of each row (default: 2)")
    parser.add_argument(
        "--profile", type=Path, help="the pair's profile, measured into this file where it is not there"
    )
    arguments = parser.parse_args()
    recorded = links(arguments.data)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        bench(EDGE_SHARE, NETWORK, file := arguments.profile or Path(folder, "profile.json")) as ready,
    ):
        measurement = Measurement(ready, file.absolute(), arguments.seconds, arguments.repeats)
        console = Console(width=150)
        console.print(
            f"{machine()}; seconds of a run, median (quartiles) of {arguments.repeats}; the agent on {EDGE_SHARE:g} of a core"
        )
        alone = Spread.of(measurement.alone_seconds_per_step())
        for name in arguments.trace or TRACES:
            found = measurement.rows(name, recorded[name], alone)
            rows += found
            console.print(table(name, found))
            write_json(arguments.json, "adaptation_link", profile=ready.profile, rows=rows)


if __name__ == "__main__":
    main()
