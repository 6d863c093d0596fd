"""Schedules made again, in real runs: a link that gets slower, and members that are told the layers before or measure them."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Timer

from rich.table import Table

from benchmarks.groups.links import MEMBERS, Mix
from benchmarks.groups.sleeping import sleeping_group
from benchmarks.support.report import Spread
from edge_agent.planner_names import DYNACOMM
from edge_agent.planning.schedules import STRATEGIES, bounds_of
from edge_agent.planning.schedules.again import kept

MIX = Mix("transfer is as long as computing", 20, 1.0)
BEFORE, AFTER = 0.1, 0.6
"""Parts of that time that transfers take before the change, and after it."""
STEPS, CHANGE_SECONDS, COUNTED = 90, 30.0, 15
"""Steps of a run, when the link changes after the first member has its session, and the last steps, which count."""
TOLD, MEASURES = "told the layers before", "measures them"


@dataclass(frozen=True)
class Run:
    """Steps of members under one schedule. Seconds are of a step."""

    system: str
    seconds: Spread
    """Seconds of the last steps."""
    longest: float
    steps: list[float]


def again(show: Callable[[Table], None]) -> dict[str, object]:
    """Measure both, each over the same change."""
    before, after = (MIX.layers.carried(part, part) for part in (BEFORE, AFTER))
    best, planned = STRATEGIES[DYNACOMM](after), STRATEGIES[DYNACOMM](before)
    assert planned.pull_segments is not None, "a strategy with a barrier has segments"
    assert planned.push_segments is not None, "a strategy with a barrier has segments"
    stays = kept(after, bounds_of(planned.pull_segments), bounds_of(planned.push_segments))
    runs = []
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        sleeping_group(before, MEMBERS, Path(folder)) as group,
    ):
        for system, told in ((TOLD, True), (MEASURES, False)):
            group.shape(before)
            change = Timer(CHANGE_SECONDS, group.shape, (after,))
            try:
                steps = group.step_seconds(DYNACOMM, STEPS, "raw", told=told, opened=change.start)
            finally:
                change.cancel()
            runs.append(Run(system, Spread.of(steps[-COUNTED:]), max(steps), steps))
            print(f"{system}: {median(steps[-COUNTED:]):.3f} s", file=sys.stderr, flush=True)
    table = Table(
        "",
        "s a step, median (quartiles)",
        "simulated",
        "longest step",
        title=f"{DYNACOMM} after transfers have become {AFTER / BEFORE:g} times as long, {MEMBERS} members",
        title_justify="left",
    )
    for run, simulated in zip(runs, (stays, best), strict=True):
        table.add_row(run.system, run.seconds.show(1.0, 3), f"{simulated.step_seconds:.3f}", f"{run.longest:.3f}")
    show(table)
    return {"runs": runs}
