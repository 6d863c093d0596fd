"""Layouts that a search finds, beside all of them; and the engine of a chain beside the best layouts that are kept.

    python -m benchmarks.planning.pool [--data FOLDER] [--minutes N] [--every N] [--json PATH]

In the simulator, over the recorded links of `benchmarks.planning.adaptation`. Two workers: VGG19 on the authors' devices, with
an engine that weighs all layouts, and with one that weighs those which its searches find. The goal is to lose 1 % at most. A
chain: that of edge_agent/demo/chain.json, whose first link is the recorded one. "best kept" is the best of the start and of the
five layouts whose speeds over the trace are best by the cost model. The goal is never to be more than 5 % behind it.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.planning.adaptation import links
from benchmarks.planning.paper_profiles import DEVICES, vgg19_profile
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.planning import (
    PROBE_SECONDS,
    Layout,
    LinkTrace,
    SearchSpace,
    Setting,
    Trace,
    best,
    compare,
    load_profile,
)
from edge_agent.planning.families.registry import listed

CHAIN = Path("edge_agent/demo/chain.json")
STALENESS, KEPT = 4, 5


@dataclass(frozen=True)
class Row:
    """One link."""

    profile: str
    trace: str
    seconds: float
    """Seconds of 100 steps with the engine that is judged."""
    against_seconds: float
    """Seconds with the engine that weighs all layouts, or with the best layout that is kept."""

    @property
    def ratio(self) -> float:
        """Return the first over the second."""
        return self.seconds / self.against_seconds


def pair_row(name: str, trace: str, setting: Setting) -> Row:
    """Compare a generated pool with a complete one."""
    complete = compare(setting, ["greedy"])["greedy"]
    with mock.patch("edge_agent.planning.engine.pool.listed", return_value=None):
        generated = compare(setting, ["greedy"])["greedy"]
    return Row(name, trace, generated.seconds_per_100_steps, complete.seconds_per_100_steps)


def chain_row(trace: str, setting: Setting) -> Row:
    """Compare the engine of a chain with the best layouts that are kept."""
    followed = compare(setting, ["greedy"])["greedy"]
    kept = [setting.run(layout).seconds_per_100_steps for layout in (followed.start, *_best_kept(setting))]
    return Row(CHAIN.stem, trace, followed.seconds_per_100_steps, min(kept))


def _best_kept(setting: Setting) -> list[Layout]:
    """Return the layouts of most steps over the trace by the cost model, second by second."""
    every = listed(setting.question)
    if every is None:
        return [best(setting.question, setting.at(setting.mean())).layout]
    layouts, loads = every
    speeds = np.zeros(len(layouts))
    for moment in np.arange(PROBE_SECONDS, PROBE_SECONDS + setting.seconds - 1.0, 2.0).tolist():
        at = setting.at([link.rates_between(moment, moment + 2.0) for link in setting.links])
        speeds += 1.0 / loads.seconds(at)
    return [layouts[row] for row in np.argsort(-speeds)[:KEPT]]


def summary(rows: list[Row], most: float) -> str:
    """The median and the worst ratio, and how often the goal was met."""
    ratios = sorted(row.ratio for row in rows)
    return (
        f"{len(rows)} links: median {statistics.median(ratios):.3f}, worst {ratios[-1]:.3f}, "
        f"within the goal on {sum(ratio <= most for ratio in ratios)}"
    )


def main() -> None:
    """Parse, simulate, print, and write the figures if asked to."""
    parser = benchmark_parser("planning.pool", "What a search misses, and what the engine of a chain gains.")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of traces and device profiles"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="length of a run (default: 20)")
    parser.add_argument("--every", type=int, default=1, help="take one link in so many (default: all)")
    arguments = parser.parse_args()
    seconds, space = arguments.minutes * 60.0, SearchSpace((8, 16, 32))
    recorded = dict(list(links(arguments.data).items())[:: arguments.every])
    console, rows = Console(width=120), []
    for device in DEVICES:
        profile = vgg19_profile(arguments.data / "device_profiles", device)
        found = [
            pair_row(f"VGG19 on {device}", name, Setting(profile, [link], space, seconds))
            for name, link in recorded.items()
        ]
        console.print(f"VGG19 on {device}, searched beside complete: {summary(found, 1.01)}")
        rows += found
    chain = load_profile(CHAIN)
    second = chain.rates(*chain.names[1:3])
    steady = LinkTrace(Trace.constant(second.uplink), Trace.constant(second.downlink), second.round_trip_seconds)
    chains = [
        chain_row(name, Setting(chain, [link, steady], SearchSpace((8, 32), STALENESS), seconds))
        for name, link in recorded.items()
    ]
    console.print(f"{CHAIN.stem}, the engine beside the best kept: {summary(chains, 1.05)}")
    table = Table(title="More than 5 % behind the best kept", title_justify="left")
    for heading in ("trace", "s/100 steps", "best kept", "ratio"):
        table.add_column(heading)
    for row in sorted(chains, key=lambda row: -row.ratio):
        if row.ratio > 1.05:
            table.add_row(row.trace, f"{row.seconds:.1f}", f"{row.against_seconds:.1f}", f"{row.ratio:.3f}")
    console.print(table)
    write_json(arguments.json, "pool", rows=rows + chains)


if __name__ == "__main__":
    main()
