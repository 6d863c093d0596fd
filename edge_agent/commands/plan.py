"""`edge-agent plan`: the best layout of a model on its workers, or of several the ranking, on the command line.

Parse, call edge_agent.planning, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.commands.plans.plan_options import (
    ANY,
    BITS_TEXT,
    CHOICE,
    GIVEN,
    GROUP,
    LINK,
    TIERS,
    AllowEdgeOnly,
    AsJson,
    Bits,
    ProfileFile,
    RoundTrip,
    Staleness,
    parse_bits,
    read_link,
    read_profile,
    refuse,
    refuse_forbidden,
    refuse_others,
)
from edge_agent.planner_names import DEFAULT_HORIZON_STEPS, PLANNER_NAMES, STRATEGY_NAMES, TIER_PLANNER_NAMES
from isthmus_entry_points import importing
from shared.bounds import MOST_SAMPLES_AHEAD, SAMPLES_AHEAD
from shared.commands.options import one_of, whole_numbers
from shared.errors import PlanError

if TYPE_CHECKING:
    from edge_agent.planning import Profile

LINK_OPTIONS = {"uplink", "downlink", "round_trip"}
OF_CANDIDATES = {"candidates", "staleness", "bits", "cut", "allow_edge_only", "as_json"}
OF_GROUPS = {"members", "as_json", *LINK_OPTIONS}
OF_SCHEDULES = {"strategy", *OF_GROUPS}
"""Options that say something about a ranking of trainers, about a group, and about its schedule."""
EXPLAINED = 3
"""Plans after the best that `--explain` shows."""


def check_name(name: str | None) -> str | None:
    """Refuse a planner that is neither here nor among the rivals that are installed. Raises typer.BadParameter."""
    if name is not None and name not in (*PLANNER_NAMES, *TIER_PLANNER_NAMES):
        with importing("edge-agent"):
            from edge_agent.planning.planners.registry import check_planner
        try:
            check_planner(name)
        except PlanError as error:
            raise typer.BadParameter(str(error)) from error
    return name


def plan(
    context: typer.Context,
    profile: ProfileFile,
    uplink: Annotated[
        str | None, typer.Option(help="Rate from the edge to the first trainer, as 10mbit.", rich_help_panel=LINK)
    ] = None,
    downlink: Annotated[
        str | None, typer.Option(help="Rate from the first trainer to the edge, as 50mbit.", rich_help_panel=LINK)
    ] = None,
    round_trip: RoundTrip = None,
    staleness: Staleness = None,
    bits: Bits = BITS_TEXT,
    cut: Annotated[
        str | None,
        typer.Option(help="The only cuts to consider, as 3, or 2,3 of three workers.", rich_help_panel=CHOICE),
    ] = None,
    allow_edge_only: AllowEdgeOnly = True,
    order: Annotated[
        str,
        typer.Option(
            help="Whether several trainers may stand in another order.",
            rich_help_panel=CHOICE,
            **one_of([GIVEN, ANY]),
        ),
    ] = GIVEN,
    planner: Annotated[
        str | None,
        typer.Option(
            help="Which planner chooses; accurate when absent, and best for three tiers. The benchmarks have others.",
            callback=check_name,
            metavar=f"[{'|'.join(dict.fromkeys((*PLANNER_NAMES, *TIER_PLANNER_NAMES)))}]",
        ),
    ] = None,
    from_cut: Annotated[
        int | None, typer.Option(help="Today's cut of two workers; without it nothing needs to move.")
    ] = None,
    horizon: Annotated[
        int, typer.Option(help="Steps that the deployment of two workers is expected to last.")
    ] = DEFAULT_HORIZON_STEPS,
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
        Path | None, typer.Option(help="Placements to rank in place of planning, a JSON object a line.")
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(
            help="Trainers to rank, each with its best layout. JSON list: name, uplink and downlink in bit/s; "
            "round_trip_seconds, cloud_factor, busy and sessions where they are known."
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(help="Members of a group of devices, to rank with one device.", rich_help_panel=GROUP),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Strategy by which a group exchanges parameters, to schedule instead.",
            rich_help_panel=GROUP,
            **one_of(STRATEGY_NAMES),
        ),
    ] = None,
    placement_out: Annotated[
        Path | None, typer.Option(help="File to write the placement to, for placement.file.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the plans that come after the best, and why they do.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose what each worker runs, K and bits: of two workers, a chain or three tiers. Or rank trainers or placements, or a
    device and a group of them."""
    with importing("edge-agent"):
        from edge_agent.commands.plans.answers import print_candidates, print_group, print_placements, print_planned
        from edge_agent.commands.plans.schedules import print_schedule_of
        from edge_agent.planning import Question, SearchSpace, with_batch_size

    if strategy is not None:
        refuse_others(context, OF_SCHEDULES, "says nothing about a schedule")
        print_schedule_of(
            profile, (uplink, downlink, round_trip), 1 if members is None else members, strategy, as_json=as_json
        )
        return
    loaded = _linked(read_profile(profile), uplink, downlink, round_trip)
    space = SearchSpace(
        parse_bits(bits),
        staleness,
        None if cut is None else whole_numbers("--cut", cut),
        allow_edge_only=allow_edge_only,
        inputs_to=frozenset(inputs_to or ()),
    )
    if candidates is not None:
        refuse_others(context, OF_CANDIDATES, "says nothing about candidates")
        print_candidates(Question(loaded, space), candidates, as_json=as_json)
        return
    if members is not None:
        refuse_others(context, OF_GROUPS, "says nothing about a group")
        _check_link(loaded)
        print_group(loaded, members, as_json=as_json)
        return
    if Question(loaded, space).is_pair:
        _check_link(loaded)
        refuse_forbidden([planner or ""], allow_edge_only=allow_edge_only)
    else:
        refuse(context, {"from_cut", "horizon"}, "is for two workers")
    if Question(loaded, space).is_tiers:
        loaded = replace(loaded, samples_ahead=ahead)
    else:
        refuse(context, {"ahead", "batch", "inputs_to"}, "is for three tiers, of which times by samples are known")
    question = Question(loaded if batch is None else with_batch_size(loaded, batch), space, horizon, from_cut)
    if placements is not None:
        refuse(context, {"planner", "placement_out", "explain", "order"}, "does not go with --placements")
        print_placements(question, placements, as_json=as_json)
        return
    print_planned(
        question,
        planner,
        any_order=order == ANY,
        explain=EXPLAINED if explain else 0,
        placement_out=placement_out,
        as_json=as_json,
    )


def _linked(loaded: "Profile", uplink: str | None, downlink: str | None, round_trip: str | None) -> "Profile":
    """Return the profile with the link that the options say between its first two workers. Raises PlanError."""
    from edge_agent.planning import MeasuredLink

    if uplink is None and downlink is None and round_trip is None:
        return loaded
    near, far = loaded.names[:2]
    if uplink is None or downlink is None:
        if uplink is not None or downlink is not None or (known := loaded.link(near, far)) is None or not known.uplink:
            raise typer.BadParameter(f"give --uplink and --downlink, the rates of the link between {near} and {far}")
        uplink, downlink = f"{known.uplink}bit", f"{known.downlink}bit"
    rates = read_link(uplink, downlink, round_trip, loaded)
    return loaded.with_links({(near, far): MeasuredLink(rates.uplink, rates.downlink, rates.round_trip_seconds)})


def _check_link(loaded: "Profile") -> None:
    """Ask for the rates of the first link where nobody has said them. Raises typer.BadParameter."""
    link = loaded.link(*loaded.names[:2]) if len(loaded.names) > 1 else None
    if link is None or link.uplink is None or link.downlink is None:
        raise typer.BadParameter("give --uplink and --downlink, the rates of the link between the first two workers")
