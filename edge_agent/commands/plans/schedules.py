"""A schedule as its JSON object and in words, and runs of strategies over a trace."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from edge_agent.commands.plans.plan_options import read_link
from edge_agent.planner_names import SEQUENTIAL
from edge_agent.planning.profile import load_document, load_profile
from edge_agent.planning.schedules import (
    PULL,
    PUSH,
    STRATEGIES,
    ExchangeSchedule,
    Layers,
    Segment,
    bound_seconds,
    layers_of,
    load_layers,
)
from shared.errors import PlanError


def print_schedule_of(
    profile: Path, link: tuple[str | None, str | None, str | None], members: int, strategy: str, *, as_json: bool
) -> None:
    """Print the schedule of a group's member, of the layers or the device in a file. link: its rates and its round trip.

    PlanError for what cannot be scheduled.
    """
    layers = _layers(profile, *link).among(members)
    print_schedule(STRATEGIES[strategy](layers), bound_seconds(layers), as_json=as_json)


def _layers(profile: Path, uplink: str | None, downlink: str | None, round_trip: str | None) -> Layers:
    if load_document(profile).layers:
        if any(one is not None for one in (uplink, downlink, round_trip)):
            raise PlanError(
                f"{profile} has layers, whose seconds are those of their own link; leave --uplink, --downlink and "
                "--round-trip out"
            )
        return load_layers(profile)
    loaded = load_profile(profile)
    if uplink is None or downlink is None:
        raise typer.BadParameter("give --uplink and --downlink, the rates of the link between a member and the trainer")
    return layers_of(loaded, read_link(uplink, downlink, round_trip, loaded))


def print_schedule(schedule: ExchangeSchedule, bound_seconds: float, *, as_json: bool) -> None:
    """Print a schedule. bound_seconds: those that no exchange without a barrier can beat."""
    typer.echo(json.dumps(schedule_fields(schedule, bound_seconds)) if as_json else described(schedule, bound_seconds))


def schedule_fields(schedule: ExchangeSchedule, bound_seconds: float) -> dict[str, object]:
    """Return a schedule as its JSON object."""
    return {
        "strategy": schedule.strategy,
        "pull_segments": schedule.pull_segments,
        "push_segments": schedule.push_segments,
        "message_bytes": schedule.message_bytes,
        "slice_bytes": schedule.slice_bytes,
        "forward_seconds": schedule.forward_seconds,
        "backward_seconds": schedule.backward_seconds,
        "step_seconds": schedule.step_seconds,
        "bound_seconds": bound_seconds,
        "events": [event._asdict() for event in schedule.events],
    }


def described(schedule: ExchangeSchedule, bound_seconds: float) -> str:
    """Return a schedule in words."""
    lines = [
        f"{schedule.strategy}: {schedule.step_seconds:.4g} s a step (no exchange takes less than {bound_seconds:.4g} s)"
    ]
    for seconds, way, kind, segments in (
        (schedule.forward_seconds, "forward", PULL, schedule.pull_segments),
        (schedule.backward_seconds, "backward", PUSH, schedule.push_segments),
    ):
        lines.append(f"  {way} {seconds:.4g} s, {_messages(schedule, kind, segments)}")
    if schedule.message_bytes is not None and schedule.slice_bytes is not None:
        lines.append(
            f"  a message is full at {schedule.message_bytes / 1e6:.3g} MB, and a slice has {schedule.slice_bytes / 1e6:.3g} MB"
        )
    return "\n".join(lines)


def _messages(schedule: ExchangeSchedule, kind: str, segments: Sequence[Segment] | None) -> str:
    if segments is None:
        return f"{len({event.begin for event in schedule.events if event.kind == kind})} messages of slices"
    shown = ", ".join(f"[{first}, {stop})" for first, stop in segments)
    return f"layers {shown} {'pulled' if kind == PULL else 'pushed'}"


def print_runs(seconds: Mapping[str, float], strategies: Sequence[str], *, as_json: bool) -> None:
    """Print what 100 steps of these strategies take over a trace, and the part that each saves of the sequential one."""
    rows = [(each, seconds[each], 1.0 - seconds[each] / seconds[SEQUENTIAL]) for each in strategies]
    if as_json:
        fields = ("strategy", "seconds_per_100_steps", "saved")
        typer.echo(json.dumps([dict(zip(fields, row, strict=True)) for row in rows]))
        return
    lines = [f"{'strategy':<12} {'s/100 steps':>12} {'saved':>8}"]
    lines += [f"{strategy:<12} {taken:>12.2f} {saved:>8.1%}" for strategy, taken, saved in rows]
    typer.echo("\n".join(lines))
