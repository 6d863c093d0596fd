"""`edge-agent simulate`: the simulators on the command line.

Parse, call edge_agent.planning, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plans.plan_options import (
    BITS_TEXT,
    LINK,
    AllowEdgeOnly,
    AsJson,
    Bits,
    ProfileFile,
    RoundTrip,
    Staleness,
    parse_bits,
    read_profile,
    refuse_forbidden,
    refuse_others,
    round_trip_seconds,
)
from edge_agent.commands.schedules.options import ALL, GROUP, Members, named
from edge_agent.planner_names import ACCURATE, GREEDY, PARTITION, STRATEGY_NAMES
from isthmus_entry_points import importing
from shared.errors import PlanError

COMMON = {"staleness", "bits", "allow_edge_only", "as_json"}
"""Options that say something of every simulation."""
MOVING = {"sites", "path", "policy", "uplink", "between", "cloud_round_trip", "relay", "seed"}
"""Options of a device that moves."""
MOVE = "A device that moves"
"""Panel of the help."""
OF_GROUPS = {
    *("trace", "downlink_trace", "downlink", "trace_run", "round_trip", "seconds"),
    *("strategy", "members", "as_json"),
}
"""Options that say something about a group."""


@dataclass(frozen=True)
class MoveOptions:
    """The options of a simulated move, as they were given."""

    sites: Path
    path: Path
    policies: Sequence[str]
    uplink: str | None
    downlink: str | None
    between: str
    cloud_round_trip: str
    relay: bool
    seed: int


def simulate(
    context: typer.Context,
    profile: ProfileFile,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="Trace of the uplink, and of the downlink where none is given for it; of a chain one for each link.",
            rich_help_panel=LINK,
        ),
    ] = None,
    downlink_trace: Annotated[
        list[Path] | None,
        typer.Option(help="Trace of the downlink; of a chain one for each link.", rich_help_panel=LINK),
    ] = None,
    downlink: Annotated[
        str | None, typer.Option(help="Constant rate of the downlink, as 50mbit.", rich_help_panel=LINK)
    ] = None,
    trace_run: Annotated[int | None, typer.Option(help="Which run of a list of 5G runs.", rich_help_panel=LINK)] = None,
    round_trip: RoundTrip = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Length of the run; the trace starts again when it ends. Once through when absent."),
    ] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Planner to run; may be repeated. All of them when absent: {ACCURATE} and {GREEDY}, of a chain {PARTITION} "
            f"and {GREEDY}, and their rivals where the benchmarks are installed."
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="Strategy of a group to run instead of planners; may be repeated. "
            f"{ALL}, or one of {', '.join(STRATEGY_NAMES)}.",
            rich_help_panel=GROUP,
        ),
    ] = None,
    members: Members = 1,
    staleness: Staleness = None,
    bits: Bits = BITS_TEXT,
    allow_edge_only: AllowEdgeOnly = True,
    sites: Annotated[
        Path | None,
        typer.Option(
            help="CSV of trainers at places: SITE_ID, LATITUDE, LONGITUDE, and if known radius_m, round_trip_ms, "
            "cloud_factor, uplink_mbit, downlink_mbit.",
            rich_help_panel=MOVE,
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="CSV of the device's way among them: second, latitude, longitude.", rich_help_panel=MOVE),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to follow; may be repeated. All of them when absent.",
            rich_help_panel=MOVE,
        ),
    ] = None,
    uplink: Annotated[
        str | None,
        typer.Option(
            help="Rate up to the cloud and to sites without their own; --downlink is the rate down.",
            rich_help_panel=MOVE,
        ),
    ] = None,
    between: Annotated[str, typer.Option(help="Rate from trainer to trainer.", rich_help_panel=MOVE)] = "1gbit",
    cloud_round_trip: Annotated[
        str, typer.Option(help="Time from the device to the cloud and back.", rich_help_panel=MOVE)
    ] = "135ms",
    relay: Annotated[
        bool, typer.Option("--relay", help="Reach a site out of reach through one in reach.", rich_help_panel=MOVE)
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of what the file of sites leaves open, and of chance.", rich_help_panel=MOVE)
    ] = 0,
    png: Annotated[
        Path | None, typer.Option(help="Plot rates, cut and bits of the first planner over time to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace of each link through the planners, or through strategies of a group, or a device's way through policies of
    choosing a trainer, and print the time of 100 steps for each."""
    with importing("edge-agent"):
        from edge_agent.commands.schedules.printing import print_runs
        from edge_agent.commands.simulation import open_links, print_results
        from edge_agent.planning import Question, SearchSpace, Setting, compare
        from edge_agent.planning.installed import MOVES, installed_function
        from edge_agent.planning.schedules import compare_strategies

    if sites is not None or path is not None:
        if sites is None or path is None:
            raise typer.BadParameter("give both --sites and --path")
        refuse_others(context, {*MOVING, *COMMON, "downlink"}, "says nothing about a device that moves")
        print_moves = installed_function(MOVES, "the simulation of a device that moves")
        options = MoveOptions(
            sites, path, policy or (), uplink, downlink, between, cloud_round_trip, relay=relay, seed=seed
        )
        space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
        print_moves(read_profile(profile), space, options, as_json=as_json)
        return
    if not trace:
        raise typer.BadParameter("give --trace, or --sites and --path")
    loaded = read_profile(profile)
    if strategy:
        refuse_others(context, OF_GROUPS, "is for planners and says nothing about the strategies of a group")
        links = open_links(trace, downlink_trace, downlink, trace_run, [round_trip_seconds(round_trip, loaded)])
        duration = links[0].duration_seconds if seconds is None else seconds
        print_runs(compare_strategies(loaded, links[0], members, duration, named(strategy)), as_json=as_json)
        return
    if members != 1:
        raise PlanError("--members is for a group; give --strategy, too")
    if Question(loaded).is_tiers:
        raise PlanError(
            "a profile of three tiers is planned with edge-agent plan; traces of its links cannot be replayed"
        )
    space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
    others = {parameter.name or "" for parameter in context.command.params} - MOVING
    refuse_others(context, others, "is for a device that moves, which --sites and --path describe")
    if Question(loaded).is_pair:
        refuse_forbidden(planner or (), allow_edge_only=allow_edge_only)
        round_trips = [round_trip_seconds(round_trip, loaded)]
    else:
        refuse_others(
            context,
            {"trace", "downlink_trace", "downlink", "trace_run", "seconds", "planner"} | COMMON,
            "is for two workers and says nothing about a chain",
        )
        round_trips = [loaded.rates(*hop).round_trip_seconds for hop in pairwise(loaded.names)]
    links = open_links(trace, downlink_trace, downlink, trace_run, round_trips)
    duration = max(link.duration_seconds for link in links) if seconds is None else seconds
    results = compare(Setting(loaded, links, space, duration), planner or ())
    if png is not None:
        # Only here: a device that only trains need not have matplotlib.
        from edge_agent.commands.plans.plan_plot import plot_run

        plot_run(results[0], links[0], duration, png)
    print_results(results, loaded.names, as_json=as_json)
