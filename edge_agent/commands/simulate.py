"""`edge-agent simulate`: the simulators on the command line.

Parse, call shared.planning, print. What is wrong raises PlanError; the app makes one line and an exit code of it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plan_options import (
    BITS_TEXT,
    AllowEdgeOnly,
    AsJson,
    Bits,
    ProfileFile,
    RoundTrip,
    StagesFile,
    Staleness,
    parse_bits,
    refuse_others,
    round_trip_seconds,
)
from shared.errors import PlanError
from shared.planning import (
    CONTESTANTS,
    EDGE_ONLY,
    LinkTrace,
    PlannedDeployment,
    Profile,
    Result,
    SearchSpace,
    Trace,
    compare,
    load_profile,
    load_trace,
    parse_rate,
)
from shared.planning.chain import CHAIN_CONTESTANTS, ChainDeployment, ChainSetting, compare_chain, load_chain

COMMON = {"staleness", "bits", "as_json"}
"""Options that say something of both."""

AnyResult = Result[PlannedDeployment] | Result[ChainDeployment]


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("simulate")(simulate_command)


def simulate_command(
    context: typer.Context,
    trace: Annotated[
        list[Path],
        typer.Option(
            help="Trace of the uplink, and of the downlink where none is given for it; with --stages one for each link."
        ),
    ],
    profile: ProfileFile = None,
    stages: StagesFile = None,
    downlink_trace: Annotated[
        list[Path] | None, typer.Option(help="Trace of the downlink; with --stages one for each link.")
    ] = None,
    downlink: Annotated[str | None, typer.Option(help="Constant rate of the downlink, as 50mbit.")] = None,
    trace_run: Annotated[int | None, typer.Option(help="Which run of a list of 5G runs.")] = None,
    round_trip: RoundTrip = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Length of the run; the trace starts again when it ends. Once through when absent."),
    ] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Planner to run; may be repeated. All of them when absent: {', '.join(CONTESTANTS)}; "
            f"with --stages {', '.join(CHAIN_CONTESTANTS)}."
        ),
    ] = None,
    staleness: Staleness = None,
    bits: Bits = BITS_TEXT,
    allow_edge_only: AllowEdgeOnly = True,
    png: Annotated[
        Path | None, typer.Option(help="Plot rates, cut and bits of the first planner over time to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a bandwidth trace of each link through the planners and print the time of 100 steps for each."""
    widths = parse_bits(bits)
    if stages is not None:
        refuse_others(
            context, {"stages", "trace", "downlink_trace", "downlink", "trace_run", "seconds", "planner"} | COMMON
        )
        chain = load_chain(stages)
        round_trips = [each.round_trip_seconds for each in chain.links]
        links = open_links(trace, downlink_trace, downlink, trace_run, round_trips)
        duration = max(link.duration_seconds for link in links) if seconds is None else seconds
        setting = ChainSetting(chain, links, widths, staleness, duration)
        print_results(compare_chain(setting, planner or [*CHAIN_CONTESTANTS]), as_json=as_json)
        return
    if profile is None:
        raise typer.BadParameter("give --profile or --stages")
    loaded = load_profile(profile)
    (link,) = open_links(trace, downlink_trace, downlink, trace_run, [round_trip_seconds(round_trip, loaded)])
    space = SearchSpace(widths, staleness, allow_edge_only=allow_edge_only)
    duration = link.duration_seconds if seconds is None else seconds
    results = compare(loaded, link, space, duration, tuple(planner or runnable(loaded)))
    if png is not None:
        # Only here: a device that only trains need not have matplotlib.
        from edge_agent.commands.plan_plot import plot_run

        plot_run(results[0], link, duration, png)
    print_results(results, as_json=as_json)


def print_results(results: Sequence[AnyResult], *, as_json: bool) -> None:
    """All runs, as JSON or as a table."""
    typer.echo(json.dumps([result_fields(result) for result in results]) if as_json else describe_results(results))


def open_links(
    traces: list[Path],
    downlink_traces: list[Path] | None,
    downlink: str | None,
    trace_run: int | None,
    round_trips: list[float],
) -> list[LinkTrace]:
    """Both directions of each link from what was given for them; round_trips: in seconds, one a link. PlanError."""
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


def runnable(profile: Profile) -> list[str]:
    """All planners but edge-only where the profile has no measurement of it."""
    return [name for name in CONTESTANTS if name != EDGE_ONLY or profile.edge_seconds[-1] is not None]


def result_fields(result: AnyResult) -> dict[str, object]:
    """A simulated run as its JSON object; times that never end are null."""
    fields: dict[str, object] = {
        "planner": result.planner,
        "seconds_per_100_steps": result.seconds_per_100_steps if result.seconds_per_100_steps < float("inf") else None,
    }
    if result.run is not None:
        fields["start"] = asdict(result.run.start)
        fields["switches"] = [
            {"seconds": switch.seconds, **asdict(switch.deployment), "paused_seconds": switch.paused_seconds}
            for switch in result.run.switches
        ]
    return fields


def describe_results(results: Sequence[AnyResult]) -> str:
    """A table: planner, seconds per 100 steps, how it began and how often it changed."""
    lines = [f"{'planner':<12} {'s/100 steps':>12}  {'start':<34} changes"]
    for result in results:
        start, changes = ("", "") if result.run is None else (str(result.run.start), str(len(result.run.switches)))
        lines.append(f"{result.planner:<12} {result.seconds_per_100_steps:>12.2f}  {start:<34} {changes}")
    return "\n".join(lines)
