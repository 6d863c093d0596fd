"""`edge-agent plan`: the planners on the command line.

Parse, call, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plans.plan_options import (
    ANY,
    BITS_TEXT,
    CHOICE,
    GIVEN,
    LINK,
    TIERS,
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
)
from edge_agent.commands.schedules.options import GROUP
from edge_agent.planner_names import ACCURATE, BEST, DEFAULT_HORIZON_STEPS, PLANNER_NAMES, TIER_PLANNER_NAMES
from isthmus_entry_points import importing
from shared.bounds import MOST_SAMPLES_AHEAD, SAMPLES_AHEAD
from shared.commands.options import one_of

OF_TIERS_ALONE = {"ahead", "batch", "inputs_to", "placement_out", "placements"}
OF_TIERS = {*OF_TIERS_ALONE, "planner", "staleness", "bits", "allow_edge_only", "as_json"}
"""Options that say something about three tiers."""

NAMES = tuple(dict.fromkeys((*PLANNER_NAMES, *TIER_PLANNER_NAMES)))
"""Planners that need no other package."""
OF_GROUPS = {"members", "uplink", "downlink", "round_trip", "as_json"}
"""Options that say something about a group."""


def check_planner(name: str | None) -> str | None:
    """Refuse a planner that is neither here nor among the rivals that are installed. Raises typer.BadParameter."""
    if name is None or name in NAMES:
        return name
    with importing("edge-agent"):
        from edge_agent.planning.installed import PAIR, installed, there_are

    if name not in (rivals := installed(PAIR)):
        raise typer.BadParameter(f"there is no planner {name!r}; {there_are([*NAMES, *rivals], rivals)}")
    return name


def plan(
    context: typer.Context,
    profile: ProfileFile,
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
    planner: Annotated[
        str | None,
        typer.Option(
            help="Which planner chooses; accurate for two workers and best for three tiers when absent. The benchmarks have "
            "others.",
            callback=check_planner,
            metavar=f"[{'|'.join(NAMES)}]",
        ),
    ] = None,
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
    batch: Annotated[
        int | None, typer.Option(help="Samples of a batch; those of the profile when absent.", rich_help_panel=TIERS)
    ] = None,
    inputs_to: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs-to",
            help="A trainer that may have raw samples, as with privacy.inputs_to. Repeatable.",
            rich_help_panel=TIERS,
        ),
    ] = None,
    ahead: Annotated[
        int,
        typer.Option(
            help="Steps that raw samples and labels leave before their own, as with data.ahead.",
            min=0,
            max=MOST_SAMPLES_AHEAD,
            rich_help_panel=TIERS,
        ),
    ] = SAMPLES_AHEAD,
    placements: Annotated[
        Path | None,
        typer.Option(help="Placements to cost in place of planning, a JSON object a line.", rich_help_panel=TIERS),
    ] = None,
    placement_out: Annotated[
        Path | None,
        typer.Option(help="File to write the placement to, for placement.file.", rich_help_panel=TIERS),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(help="Members of a group of devices, to compare with one device.", rich_help_panel=GROUP),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose cut, staleness and bit width for a link, the cuts and bit widths of a chain, how three tiers share layers and
    samples, or whether a group of devices is worth it."""
    with importing("edge-agent"):
        from edge_agent.commands.plans.chain_plan import print_chain_plan
        from edge_agent.commands.plans.group_plan import print_group_plan
        from edge_agent.commands.plans.link_plan import print_link_plan, read_link
        from edge_agent.commands.plans.tiers_plan import print_placements, print_tiers_plan, tiers_question
        from edge_agent.planning import Question, SearchSpace

    loaded = read_profile(profile)
    if members is not None:
        refuse_others(context, OF_GROUPS, "says nothing about a group")
        if uplink is None or downlink is None:
            raise typer.BadParameter("give --uplink and --downlink, the rates of the trainer's link")
        print_group_plan(loaded, read_link(uplink, downlink, round_trip, loaded), members, as_json=as_json)
        return
    if Question(loaded).is_tiers:
        refuse_others(context, OF_TIERS, "says nothing about three tiers")
        permitted = frozenset(inputs_to or ())
        space = SearchSpace(parse_bits(bits), staleness or 0, allow_edge_only=allow_edge_only, inputs_to=permitted)
        question = tiers_question(replace(loaded, samples_ahead=ahead), space, batch, inputs_to or ())
        if placements is not None and placement_out is not None:
            raise typer.BadParameter(
                "--placements costs placements, and --placement-out writes a planned one; leave one out"
            )
        if placements is not None:
            print_placements(question, placements, as_json=as_json)
        else:
            print_tiers_plan(question, planner or BEST, placement_out, as_json=as_json)
        return
    if not Question(loaded).is_pair:
        refuse_others(context, {"staleness", "bits", "allow_edge_only", "order", "as_json"})
        space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
        print_chain_plan(loaded, space, order, as_json=as_json)
        return
    if uplink is None or downlink is None:
        raise typer.BadParameter("give --uplink and --downlink, the rates of the link between the two workers")
    others = {parameter.name or "" for parameter in context.command.params} - OF_TIERS_ALONE - {"members"}
    refuse_others(context, others, "says nothing about two workers")
    refuse_forbidden([planner or ACCURATE], allow_edge_only=allow_edge_only)
    rates = read_link(uplink, downlink, round_trip, loaded)
    space = SearchSpace(parse_bits(bits), staleness, None if cut is None else (cut,), allow_edge_only=allow_edge_only)
    print_link_plan(planner or ACCURATE, loaded, rates, space, horizon, from_cut, as_json=as_json)
