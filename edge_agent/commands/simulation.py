"""Links that `edge-agent simulate` runs over, and the presentation of its results."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from edge_agent.commands.plans.printing import layout_fields
from edge_agent.planning import LinkTrace, Result, Trace, load_trace, parse_rate
from shared.errors import PlanError


def print_results(results: Sequence[Result], names: Sequence[str], *, as_json: bool) -> None:
    """All runs, as JSON or as a table. names: of the profile's workers."""
    fields = [result_fields(result, names) for result in results]
    typer.echo(json.dumps(fields) if as_json else describe_results(results))


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


def result_fields(result: Result, names: Sequence[str]) -> dict[str, object]:
    """A simulated run as its JSON object; times that never end are null."""
    return {
        "planner": result.planner,
        "seconds_per_100_steps": result.seconds_per_100_steps if result.seconds_per_100_steps < float("inf") else None,
        "start": layout_fields(result.run.start, names),
        "switches": [
            {"seconds": switch.seconds, **layout_fields(switch.layout, names), "paused_seconds": switch.paused_seconds}
            for switch in result.run.switches
        ],
    }


def describe_results(results: Sequence[Result]) -> str:
    """A table: planner, seconds per 100 steps, how it began and how often it changed."""
    lines = [f"{'planner':<12} {'s/100 steps':>12}  {'start':<34} changes"]
    for result in results:
        start, changes = str(result.run.start), len(result.run.switches)
        lines.append(f"{result.planner:<12} {result.seconds_per_100_steps:>12.2f}  {start:<34} {changes}")
    return "\n".join(lines)
