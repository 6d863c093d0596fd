"""`edge-agent plan`: the planners on the command line.

Parse, call shared.planning, print. What is wrong raises PlanError; the app makes one line and an exit code of it.
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from edge_agent.commands.chain_plan import ANY, GIVEN, print_chain_plan
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
from edge_agent.commands.plan_reasons import not_taken, uncalibrated
from shared.commands.options import one_of
from shared.errors import PlanError
from shared.planning import (
    DEFAULT_HORIZON_STEPS,
    FIXED,
    GREEDY,
    PLANNERS,
    Plan,
    Profile,
    Rates,
    SearchSpace,
    load_profile,
    parse_rate,
)
from shared.telemetry.phases import PHASES


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(plan)


def plan(
    context: typer.Context,
    profile: ProfileFile = None,
    stages: StagesFile = None,
    uplink: Annotated[str | None, typer.Option(help="Rate from the edge to the trainer, as 10mbit.")] = None,
    downlink: Annotated[str | None, typer.Option(help="Rate from the trainer to the edge, as 50mbit.")] = None,
    round_trip: RoundTrip = None,
    staleness: Staleness = None,
    from_cut: Annotated[int | None, typer.Option(help="Today's cut; without it nothing needs to move.")] = None,
    horizon: Annotated[
        int, typer.Option(help="Steps that the deployment is expected to last.")
    ] = DEFAULT_HORIZON_STEPS,
    bits: Bits = BITS_TEXT,
    planner: Annotated[str, typer.Option(help="Which planner chooses.", **one_of([*PLANNERS, FIXED]))] = GREEDY,
    cut: Annotated[int | None, typer.Option(help="The only cut to consider; --planner fixed needs it.")] = None,
    allow_edge_only: AllowEdgeOnly = True,
    order: Annotated[
        str,
        typer.Option(help="With --stages: whether the trainers may stand in another order.", **one_of([GIVEN, ANY])),
    ] = GIVEN,
    as_json: AsJson = False,
) -> None:
    """Choose cut, staleness and bit width for a link, or the cuts and bit widths of a chain (--stages)."""
    if stages is not None:
        refuse_others(context, {"stages", "staleness", "bits", "order", "as_json"})
        print_chain_plan(stages, parse_bits(bits), staleness, order, as_json=as_json)
        return
    if profile is None or uplink is None or downlink is None:
        raise typer.BadParameter("give --profile with --uplink and --downlink, or --stages")
    loaded = load_profile(profile)
    rates = Rates(
        parse_rate(uplink, "--uplink"), parse_rate(downlink, "--downlink"), round_trip_seconds(round_trip, loaded)
    )
    space = SearchSpace(parse_bits(bits), staleness, cut, allow_edge_only)
    chosen = choose(planner, loaded, rates, space, horizon, from_cut)
    notes = uncalibrated(loaded, chosen)
    if planner == GREEDY:
        notes += not_taken(loaded, rates, space, horizon, from_cut, chosen)
    typer.echo(json.dumps(plan_fields(chosen, notes)) if as_json else describe_plan(chosen, notes, loaded))


def choose(
    planner: str, profile: Profile, rates: Rates, space: SearchSpace, horizon: int, from_cut: int | None
) -> Plan:
    """The named planner's answer."""
    if planner == FIXED and (space.cut is None or len(space.bits) != 1):
        raise PlanError("--planner fixed needs the deployment: --cut and one width in --bits, as --cut 3 --bits 8")
    return PLANNERS[GREEDY if planner == FIXED else planner](profile, rates, space, horizon, from_cut)


def plan_fields(chosen: Plan, notes: list[str]) -> dict[str, object]:
    """A plan as its JSON object, with what there is to say of it."""
    return {
        **asdict(chosen.deployment),
        "seconds_per_step": chosen.seconds_per_step,
        "phase_seconds": list(chosen.phase_seconds),
        "migration_seconds": chosen.migration_seconds,
        "evaluated": chosen.evaluated,
        "notes": notes,
    }


def describe_plan(chosen: Plan, notes: list[str], profile: Profile) -> str:
    """A plan in words, and what there is to say of it."""
    deployment = chosen.deployment
    where = (
        "edge-only" if deployment.cut == len(profile) else f"blocks [0, {deployment.cut}) of {len(profile)} on the edge"
    )
    phases = zip(PHASES, chosen.phase_seconds, strict=True)
    lines = [
        f"{deployment} ({where})",
        f"  {chosen.seconds_per_step:.4g} s a step: "
        + ", ".join(f"{name} {seconds:.4g} s" for name, seconds in phases),
    ]
    if chosen.migration_seconds:
        lines.append(f"  {chosen.migration_seconds:.4g} s to move the blocks there")
    return "\n".join([*lines, f"  best of {chosen.evaluated}", *(f"  note: {note}" for note in notes)])
