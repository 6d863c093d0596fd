"""Links that `edge-agent simulate` runs over, and the presentation of its results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from edge_agent.commands.plans.printing import layout_fields
from edge_agent.planning import LinkTrace, Run, Trace, load_trace, parse_rate
from shared.errors import PlanError


def print_results(runs: Mapping[str, Run], names: Sequence[str], *, as_json: bool) -> None:
    """Print the runs of planners, as JSON or as a table. names: of the profile's workers."""
    fields = [run_fields(planner, run, names) for planner, run in runs.items()]
    typer.echo(json.dumps(fields) if as_json else describe_runs(runs))


def open_links(
    traces: list[Path],
    downlink_traces: list[Path] | None,
    downlink: str | None,
    trace_run: int | None,
    round_trips: list[float],
) -> list[LinkTrace]:
    """Open both directions of each link from the given options. round_trips: in seconds, one a link. Raises PlanError."""
    if downlink_traces and downlink is not None:
        raise PlanError("the downlink is given twice; give either --downlink-trace or --downlink")
    for option, given in (("--trace", traces), ("--downlink-trace", downlink_traces or traces)):
        if len(given) != len(round_trips):
            raise PlanError(
                f"{option} is given {len(given)} times; there must be one for each of the links, {len(round_trips)}"
            )
    ups = [load_trace(path, trace_run) for path in traces]
    if downlink_traces:
        downs = [load_trace(path) for path in downlink_traces]
    elif downlink is not None:
        downs = [Trace.constant(parse_rate(downlink, "--downlink"))] * len(ups)
    else:
        downs = ups
    return list(map(LinkTrace, ups, downs, round_trips))


def run_fields(planner: str, run: Run, names: Sequence[str]) -> dict[str, object]:
    """A simulated run as its JSON object; times that never end are null."""
    return {
        "planner": planner,
        "seconds_per_100_steps": run.seconds_per_100_steps if run.seconds_per_100_steps < float("inf") else None,
        "start": layout_fields(run.start, names),
        "switches": [
            {"seconds": switch.seconds, **layout_fields(switch.layout, names), "paused_seconds": switch.paused_seconds}
            for switch in run.switches
        ],
    }


def describe_runs(runs: Mapping[str, Run]) -> str:
    """A table: planner, seconds per 100 steps, how it began and how often it changed."""
    lines = [f"{'planner':<12} {'s/100 steps':>12}  {'start':<34} changes"]
    for planner, run in runs.items():
        lines.append(f"{planner:<12} {run.seconds_per_100_steps:>12.2f}  {run.start!s:<34} {len(run.switches)}")
    return "\n".join(lines)
