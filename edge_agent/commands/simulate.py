"""`edge-agent simulate`: the simulators on the command line.

Parse, call shared.planning, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plan_options import (
    BITS_TEXT,
    LINK,
    AllowEdgeOnly,
    AsJson,
    Bits,
    ProfileFile,
    RoundTrip,
    StagesFile,
    Staleness,
    is_pair,
    parse_bits,
    read_profile,
    refuse_forbidden,
    refuse_others,
)
from isthmus import importing
from shared.planner_names import CHAIN_CONTESTANT_NAMES, CONTESTANT_NAMES

COMMON = {"staleness", "bits", "as_json"}
"""Options that say something of both."""


def simulate(
    context: typer.Context,
    trace: Annotated[
        list[Path],
        typer.Option(
            help="Trace of the uplink, and of the downlink where none is given for it; of a chain one for each link.",
            rich_help_panel=LINK,
        ),
    ],
    profile: ProfileFile = None,
    stages: StagesFile = None,
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
            help=f"Planner to run; may be repeated. All of them when absent: {', '.join(CONTESTANT_NAMES)}; "
            f"of a chain {', '.join(CHAIN_CONTESTANT_NAMES)}."
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
    with importing("edge-agent"):
        from edge_agent.commands.link_plan import round_trip_seconds
        from edge_agent.commands.simulation import open_links, print_results, runnable
        from shared.planning import SearchSpace, compare
        from shared.planning.chain import ChainSetting, compare_chain

    widths = parse_bits(bits)
    loaded = read_profile(profile, stages)
    if not is_pair(loaded):
        refuse_others(context, {"trace", "downlink_trace", "downlink", "trace_run", "seconds", "planner"} | COMMON)
        round_trips = [loaded.rates(*hop).round_trip_seconds for hop in pairwise(loaded.names)]
        links = open_links(trace, downlink_trace, downlink, trace_run, round_trips)
        duration = max(link.duration_seconds for link in links) if seconds is None else seconds
        setting = ChainSetting(loaded, links, widths, staleness, duration)
        print_results(compare_chain(setting, planner or CHAIN_CONTESTANT_NAMES), as_json=as_json)
        return
    refuse_forbidden(planner or (), allow_edge_only=allow_edge_only)
    (link,) = open_links(trace, downlink_trace, downlink, trace_run, [round_trip_seconds(round_trip, loaded)])
    space = SearchSpace(widths, staleness, allow_edge_only=allow_edge_only)
    duration = link.duration_seconds if seconds is None else seconds
    results = compare(loaded, link, space, duration, tuple(planner or runnable(loaded, space)))
    if png is not None:
        # Only here: a device that only trains need not have matplotlib.
        from edge_agent.commands.plan_plot import plot_run

        plot_run(results[0], link, duration, png)
    print_results(results, as_json=as_json)
