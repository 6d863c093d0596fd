"""`edge-agent plan --profile`: the planners for two workers and the link between them.

A plan alone does not name costs that were not measured, nor the reason against a layout that looks faster. This module
adds both.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import typer

from edge_agent.planner_names import ACCURATE, EXACTNESS_MARGIN, FIXED, GREEDY, PLANNER_NAMES
from edge_agent.planning import (
    FLOAT32_BITS,
    PLANNERS,
    Layout,
    Plan,
    Profile,
    Rates,
    SearchSpace,
    accurate,
    first_deployment,
    greedy,
    parse_rate,
    parse_seconds,
)
from edge_agent.planning.installed import PAIR, installed
from shared.errors import PlanError
from shared.telemetry.phases import PHASES

LEAST_GAIN = 0.001
"""Part of the time per step below which nothing counts as faster."""


def layout_fields(layout: Layout, names: Sequence[str]) -> dict[str, object]:
    """Return the fields of a layout. names: of all workers that may have blocks.

    Of two workers: cut, staleness and bits. Of a chain: those that have blocks, cuts, staleness and bits, which are lists.
    """
    if len(names) > 2:
        return {
            "workers": list(layout.workers),
            "cuts": list(layout.cuts),
            "staleness": layout.staleness,
            "bits": list(layout.bits),
        }
    bits = (*layout.bits, FLOAT32_BITS)[0]
    return {"cut": layout.tiles[0].stop, "staleness": layout.staleness, "bits": bits}


def uncalibrated(profile: Profile, plan: Plan) -> list[str]:
    """A warning where the plan may cost accuracy that was never measured."""
    chosen = plan.layout
    parts = [f"{bits} bits" for bits in chosen.bits if bits < FLOAT32_BITS] + [f"K = {chosen.staleness}"] * (
        chosen.staleness > 0
    )
    if profile.min_bits is not None or not parts:
        return []
    return [
        f"nothing was calibrated: nobody has measured what {' and '.join(parts)} cost in accuracy; edge-agent profile "
        "--calibrate finds it out"
    ]


def not_taken(
    profile: Profile, rates: Rates, space: SearchSpace, horizon_steps: int, from_cut: int | None, plan: Plan
) -> list[str]:
    """Explain why `accurate` took `plan`, and not a plan that is faster once one of its rules is left out; a sentence a
    rule."""

    def faster(searched: Profile = profile, within: SearchSpace = space, start: int | None = from_cut) -> Plan | None:
        return quicker(accurate(searched, rates, within, horizon_steps, start))

    def quicker(found: Plan) -> Plan | None:
        return found if found.seconds_per_step < (1.0 - LEAST_GAIN) * plan.seconds_per_step else None

    def described(found: Plan) -> str:
        where = str(found.layout) if found.layout.cuts else "training on the device alone"
        return f"{where} would take {found.seconds_per_step:.4g} s a step and was not taken"

    sentences = []
    if found := quicker(greedy(profile, rates, space, horizon_steps, from_cut)):
        sentences.append(
            f"{described(found)}: within {EXACTNESS_MARGIN:.0%} of the fastest, more bits and a smaller K come first; "
            "--planner greedy takes the fastest"
        )
    if found := faster(start=None):
        way_seconds = accurate(
            profile, rates, replace(space, cuts=(found.layout.tiles[0].stop,)), horizon_steps, from_cut
        ).migration_seconds
        sentences.append(
            f"{described(found)}: to move the blocks there takes {way_seconds:.4g} s, which {horizon_steps} steps do not "
            "pay back"
        )
    if found := faster(replace(profile, min_bits=None)):
        sentences.append(
            f"{described(found)}: the calibration found that it costs too much accuracy, or did not try it"
        )
    may_be_alone = replace(space, allow_edge_only=True)
    if not space.allow_edge_only and space.cuts is None and (found := faster(within=may_be_alone)):
        sentences.append(f"{described(found)}: --no-edge-only forbids it")
    return sentences


def begun_with(profile: Profile, rates: Rates, space: SearchSpace, plan: Plan) -> list[str]:
    """Name the deployment that a run with an engine begins with over such a link, if it is another; none where the cut
    is given."""
    begun = first_deployment(profile, rates, space)
    if space.cuts is not None or begun == plan.layout:
        return []
    return [
        f"with engine.profile a run begins with {begun}, which bears a link that fluctuates, and goes on "
        "choosing; without an engine it keeps what it is given"
    ]


def print_link_plan(
    planner: str,
    profile: Profile,
    rates: Rates,
    space: SearchSpace,
    horizon_steps: int,
    from_cut: int | None,
    *,
    as_json: bool,
) -> None:
    """Plan and print. PlanError if that is impossible."""
    chosen = choose(planner, profile, rates, space, horizon_steps, from_cut)
    notes = uncalibrated(profile, chosen)
    if planner == ACCURATE:
        notes += begun_with(profile, rates, space, chosen)
        notes += not_taken(profile, rates, space, horizon_steps, from_cut, chosen)
    typer.echo(json.dumps(plan_fields(chosen, notes, profile)) if as_json else describe_plan(chosen, notes, profile))


def read_link(uplink: str, downlink: str, round_trip: str | None, profile: Profile) -> Rates:
    """Return the rates that the options of these names say; PlanError."""
    seconds = round_trip_seconds(round_trip, profile)
    return Rates(parse_rate(uplink, "--uplink"), parse_rate(downlink, "--downlink"), seconds)


def round_trip_seconds(text: str | None, profile: Profile) -> float:
    """Return the round-trip time of --round-trip, or of the profile's first link where the option says nothing."""
    if text is not None:
        return parse_seconds(text, "--round-trip")
    return profile.round_trip_seconds(*profile.names[:2]) if len(profile.names) > 1 else 0.0


def choose(
    planner: str, profile: Profile, rates: Rates, space: SearchSpace, horizon: int, from_cut: int | None
) -> Plan:
    """The named planner's answer."""
    if planner == FIXED and (space.cuts is None or len(space.bits) != 1):
        raise PlanError("--planner fixed needs the deployment: --cut and one width in --bits, as --cut 3 --bits 8")
    planners = PLANNERS if planner in PLANNER_NAMES else installed(PAIR)
    if planner not in (*PLANNER_NAMES, *planners):
        names = ", ".join((*PLANNER_NAMES, *planners))
        raise PlanError(f"--planner is {planner}, which is for three tiers; of two workers: {names}")
    return planners[GREEDY if planner == FIXED else planner](profile, rates, space, horizon, from_cut)


def plan_fields(chosen: Plan, notes: list[str], profile: Profile) -> dict[str, object]:
    """Return a plan as its JSON object, with its notes."""
    return {
        **layout_fields(chosen.layout, profile.names),
        "seconds_per_step": chosen.seconds_per_step,
        "phase_seconds": list(chosen.phase_seconds),
        "migration_seconds": chosen.migration_seconds,
        "evaluated": chosen.evaluated,
        "notes": notes,
    }


def describe_plan(chosen: Plan, notes: list[str], profile: Profile) -> str:
    """Describe a plan in words, with its notes."""
    cut = chosen.layout.tiles[0].stop
    where = "edge-only" if cut == len(profile) else f"blocks [0, {cut}) of {len(profile)} on the edge"
    phases = zip(PHASES, chosen.phase_seconds, strict=True)
    lines = [
        f"{chosen.layout} ({where})",
        f"  {chosen.seconds_per_step:.4g} s a step: "
        + ", ".join(f"{name} {seconds:.4g} s" for name, seconds in phases),
    ]
    if chosen.migration_seconds:
        lines.append(f"  {chosen.migration_seconds:.4g} s to move the blocks there")
    return "\n".join([*lines, f"  best of {chosen.evaluated}", *(f"  note: {note}" for note in notes)])
