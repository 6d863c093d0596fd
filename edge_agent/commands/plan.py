"""`edge-agent plan` and `edge-agent simulate`: the planners and the simulator on the command line.

Parse, call shared.planning, print. What is wrong raises PlanError; the app makes one line and an exit code of it.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.commands.plan_reasons import not_taken, uncalibrated
from shared.commands.options import one_of
from shared.errors import PlanError
from shared.planning import (
    CONTESTANTS,
    DEFAULT_BITS,
    DEFAULT_HORIZON_STEPS,
    EDGE_ONLY,
    FIXED,
    GREEDY,
    PLANNERS,
    LinkTrace,
    Plan,
    Profile,
    Rates,
    Result,
    SearchSpace,
    Trace,
    compare,
    load_profile,
    load_trace,
    parse_rate,
    parse_seconds,
)
from shared.registry import bit_widths
from shared.telemetry.metrics import PHASES

ProfileFile = Annotated[Path, typer.Option("--profile", help="Profile of the model on the pair, a JSON file.")]
AllowEdgeOnly = Annotated[
    bool, typer.Option("--allow-edge-only/--no-edge-only", help="Whether all blocks may be on the edge.")
]
RoundTrip = Annotated[
    str | None,
    typer.Option(help="Time from the edge to the trainer and back, as 40ms; that of the profile when absent."),
]
Staleness = Annotated[
    int | None, typer.Option(help="K to plan with; searched up to the profile's max_staleness when absent.")
]
Bits = Annotated[str, typer.Option(help="Bit widths to consider, as 2,4,8,32.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_BITS_TEXT = ",".join(map(str, DEFAULT_BITS))


def register(app: typer.Typer) -> None:
    """Add both commands to an app."""
    app.command()(plan)
    app.command("simulate")(simulate_command)


def plan(
    profile: ProfileFile,
    uplink: Annotated[str, typer.Option(help="Rate from the edge to the trainer, as 10mbit.")],
    downlink: Annotated[str, typer.Option(help="Rate from the trainer to the edge, as 50mbit.")],
    round_trip: RoundTrip = None,
    staleness: Staleness = None,
    from_cut: Annotated[int | None, typer.Option(help="Today's cut; without it nothing needs to move.")] = None,
    horizon: Annotated[
        int, typer.Option(help="Steps that the deployment is expected to last.")
    ] = DEFAULT_HORIZON_STEPS,
    bits: Bits = _BITS_TEXT,
    planner: Annotated[str, typer.Option(help="Which planner chooses.", **one_of([*PLANNERS, FIXED]))] = GREEDY,
    cut: Annotated[int | None, typer.Option(help="The only cut to consider; --planner fixed needs it.")] = None,
    allow_edge_only: AllowEdgeOnly = True,
    as_json: AsJson = False,
) -> None:
    """Choose cut, staleness and bit width for a link."""
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


def simulate_command(
    profile: ProfileFile,
    trace: Annotated[Path, typer.Option(help="Trace of the uplink, and of the downlink where none is given for it.")],
    downlink_trace: Annotated[Path | None, typer.Option(help="Trace of the downlink.")] = None,
    downlink: Annotated[str | None, typer.Option(help="Constant rate of the downlink, as 50mbit.")] = None,
    trace_run: Annotated[int | None, typer.Option(help="Which run of a list of 5G runs.")] = None,
    round_trip: RoundTrip = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Length of the run; the trace starts again when it ends. Once through when absent."),
    ] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(help=f"Planner to run; may be repeated. All of them when absent: {', '.join(CONTESTANTS)}."),
    ] = None,
    staleness: Staleness = None,
    bits: Bits = _BITS_TEXT,
    allow_edge_only: AllowEdgeOnly = True,
    png: Annotated[
        Path | None, typer.Option(help="Plot rates, cut and bits of the first planner over time to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a bandwidth trace through the planners and print the time of 100 steps for each."""
    loaded = load_profile(profile)
    link = open_link(trace, downlink_trace, downlink, trace_run, round_trip_seconds(round_trip, loaded))
    space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
    duration = link.duration_seconds if seconds is None else seconds
    results = compare(loaded, link, space, duration, tuple(planner or runnable(loaded)))
    if png is not None:
        # Only here: a device that only trains need not have matplotlib.
        from edge_agent.commands.plan_plot import plot_run

        plot_run(results[0], link, duration, png)
    typer.echo(json.dumps([result_fields(result) for result in results]) if as_json else describe_results(results))


def parse_bits(text: str) -> tuple[int, ...]:
    """Bit widths written as 2,4,8,32."""
    try:
        widths = tuple(int(field) for field in text.split(","))
    except ValueError as error:
        raise PlanError(f'--bits is "{text}"; it must be whole numbers with commas between, as 2,4,8,32') from error
    if not set(widths) <= set(bit_widths()):
        raise PlanError(f"--bits is {text}; the bit widths of codecs are {', '.join(map(str, bit_widths()))}")
    return widths


def round_trip_seconds(text: str | None, profile: Profile) -> float:
    """What --round-trip says, or the profile where it says nothing."""
    return profile.round_trip_seconds or 0.0 if text is None else parse_seconds(text, "--round-trip")


def choose(
    planner: str, profile: Profile, rates: Rates, space: SearchSpace, horizon: int, from_cut: int | None
) -> Plan:
    """The named planner's answer."""
    if planner == FIXED and (space.cut is None or len(space.bits) != 1):
        raise PlanError("--planner fixed needs the deployment: --cut and one width in --bits, as --cut 3 --bits 8")
    return PLANNERS[GREEDY if planner == FIXED else planner](profile, rates, space, horizon, from_cut)


def open_link(
    trace: Path, downlink_trace: Path | None, downlink: str | None, trace_run: int | None, round_trip_seconds: float
) -> LinkTrace:
    """Both directions from what was given for them."""
    if downlink_trace is not None and downlink is not None:
        raise PlanError("the downlink is given twice; give either --downlink-trace or --downlink")
    up = load_trace(trace, trace_run)
    if downlink_trace is not None:
        down = load_trace(downlink_trace)
    elif downlink is not None:
        down = Trace.constant(parse_rate(downlink, "--downlink"))
    else:
        down = up
    return LinkTrace(up, down, round_trip_seconds)


def runnable(profile: Profile) -> list[str]:
    """All planners but edge-only where the profile has no measurement of it."""
    return [name for name in CONTESTANTS if name != EDGE_ONLY or profile.edge_seconds[-1] is not None]


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


def result_fields(result: Result) -> dict[str, object]:
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


def describe_results(results: list[Result]) -> str:
    """A table: planner, seconds per 100 steps, how it began and how often it changed."""
    lines = [f"{'planner':<12} {'s/100 steps':>12}  {'start':<34} changes"]
    for result in results:
        start, changes = ("", "") if result.run is None else (str(result.run.start), str(len(result.run.switches)))
        lines.append(f"{result.planner:<12} {result.seconds_per_100_steps:>12.2f}  {start:<34} {changes}")
    return "\n".join(lines)
