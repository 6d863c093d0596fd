"""`edge-agent plan`: the planners on the command line.

Parse, call, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from typing import Annotated

import typer

from edge_agent.commands.plan_options import (
    ANY,
    BITS_TEXT,
    CHOICE,
    GIVEN,
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
from shared.commands.options import one_of
from shared.planner_names import ACCURATE, DEFAULT_HORIZON_STEPS, PLANNER_NAMES


def plan(
    context: typer.Context,
    profile: ProfileFile = None,
    stages: StagesFile = None,
    uplink: Annotated[
        str | None, typer.Option(help="Rate from the edge to the trainer, as 10mbit.", rich_help_panel=LINK)
    ] = None,
    downlink: Annotated[
        str | None, typer.Option(help="Rate from the trainer to the edge, as 50mbit.", rich_help_panel=LINK)
    ] = None,
    round_trip: RoundTrip = None,
    staleness: Staleness = None,
    from_cut: Annotated[int | None, typer.Option(help="Today's cut; without it nothing needs to move.")] = None,
    horizon: Annotated[
        int, typer.Option(help="Steps that the deployment is expected to last.")
    ] = DEFAULT_HORIZON_STEPS,
    bits: Bits = BITS_TEXT,
    planner: Annotated[str, typer.Option(help="Which planner chooses.", **one_of(PLANNER_NAMES))] = ACCURATE,
    cut: Annotated[
        int | None, typer.Option(help="The only cut to consider; --planner fixed needs it.", rich_help_panel=CHOICE)
    ] = None,
    allow_edge_only: AllowEdgeOnly = True,
    order: Annotated[
        str,
        typer.Option(
            help="Of a chain: whether the trainers may stand in another order.",
            rich_help_panel=CHOICE,
            **one_of([GIVEN, ANY]),
        ),
    ] = GIVEN,
    as_json: AsJson = False,
) -> None:
    """Choose cut, staleness and bit width for a link, or the cuts and bit widths of a chain."""
    with importing("edge-agent"):
        from edge_agent.commands.chain_plan import print_chain_plan
        from edge_agent.commands.link_plan import print_link_plan, read_link
        from shared.planning import SearchSpace

    loaded = read_profile(profile, stages)
    if not is_pair(loaded):
        refuse_others(context, {"staleness", "bits", "allow_edge_only", "order", "as_json"})
        space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
        print_chain_plan(loaded, space, order, as_json=as_json)
        return
    if uplink is None or downlink is None:
        raise typer.BadParameter("give --uplink and --downlink, the rates of the link between the two workers")
    refuse_forbidden([planner], allow_edge_only=allow_edge_only)
    rates = read_link(uplink, downlink, round_trip, loaded)
    space = SearchSpace(parse_bits(bits), staleness, None if cut is None else (cut,), allow_edge_only=allow_edge_only)
    print_link_plan(planner, loaded, rates, space, horizon, from_cut, as_json=as_json)
