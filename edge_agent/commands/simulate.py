"""`edge-agent simulate`: the simulators on the command line.

Parse, call edge_agent.planning, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plans.plan_options import (
    ALL,
    BITS_TEXT,
    GROUP,
    LINK,
    AllowEdgeOnly,
    AsJson,
    Bits,
    Members,
    ProfileFile,
    RoundTrip,
    Staleness,
    named,
    parse_bits,
    read_profile,
    refuse_forbidden,
    refuse_others,
    round_trip_seconds,
)
from edge_agent.planner_names import ACCURATE, GREEDY, PARTITION, STRATEGY_NAMES
from isthmus_entry_points import importing
from shared.errors import PlanError

OF_CHAINS = {
    *("trace", "downlink_trace", "downlink", "trace_run", "seconds", "planner"),
    *("staleness", "bits", "allow_edge_only", "as_json"),
}
"""Options that say something about a chain."""
OF_GROUPS = {
    *("trace", "downlink_trace", "downlink", "trace_run", "round_trip", "seconds"),
    *("strategy", "members", "as_json"),
}
"""Options that say something about a group."""


def simulate(
    context: typer.Context,
    profile: ProfileFile,
    trace: Annotated[
        list[Path],
        typer.Option(
            help="Trace of the uplink, and of the downlink where none is given for it; of a chain one for each link.",
            rich_help_panel=LINK,
        ),
    ],
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
    png: Annotated[
        Path | None, typer.Option(help="Plot rates, cut and bits of the first planner over time to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace of each link through the planners, or through strategies of a group, and print the time of 100 steps for
    each."""
    with importing("edge-agent"):
        from edge_agent.commands.plans.schedules import print_runs
        from edge_agent.commands.simulation import open_links, plot_run, print_results
        from edge_agent.planning import Question, SearchSpace, Setting, compare
        from edge_agent.planning.schedules import compare_strategies

    loaded = read_profile(profile)
    if strategy:
        refuse_others(context, OF_GROUPS, "is for planners and says nothing about the strategies of a group")
        links = open_links(trace, downlink_trace, downlink, trace_run, [round_trip_seconds(round_trip, loaded)])
        duration = links[0].duration_seconds if seconds is None else seconds
        names = named(strategy)
        print_runs(compare_strategies(loaded, links[0], members, duration, names), names, as_json=as_json)
        return
    if members != 1:
        raise PlanError("--members is for a group; give --strategy, too")
    if Question(loaded).is_tiers:
        raise PlanError(
            "a profile of three tiers is planned with edge-agent plan; traces of its links cannot be replayed"
        )
    space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
    if Question(loaded).is_pair:
        refuse_forbidden(planner or (), allow_edge_only=allow_edge_only)
        round_trips = [round_trip_seconds(round_trip, loaded)]
    else:
        refuse_others(context, OF_CHAINS, "is for two workers and says nothing about a chain")
        round_trips = [loaded.rates(*hop).round_trip_seconds for hop in pairwise(loaded.names)]
    links = open_links(trace, downlink_trace, downlink, trace_run, round_trips)
    duration = max(link.duration_seconds for link in links) if seconds is None else seconds
    runs = compare(Setting(loaded, links, space, duration), planner or ())
    if png is not None:
        plot_run(*next(iter(runs.items())), links[0], duration, png)
    print_results(runs, loaded.names, as_json=as_json)
