"""`edge-agent plan --members`: whether a group of devices is worth it, on the command line."""

import json

import typer

from edge_agent.planning import Profile, Rates
from edge_agent.planning.group_choice import GroupChoice, Sharing, group_choice


def print_group_plan(profile: Profile, rates: Rates, members: int, *, as_json: bool) -> None:
    """Compare and print. PlanError if that is impossible."""
    choice = group_choice(profile, rates, members)
    typer.echo(json.dumps(choice_fields(choice)) if as_json else described(choice))


def choice_fields(choice: GroupChoice) -> dict[str, object]:
    """Return a comparison as its JSON object."""
    return {"ways": [way._asdict() for way in choice.ways], "best": choice.best._asdict()}


def described(choice: GroupChoice) -> str:
    """Return a comparison in words: a line for each way, and the best."""
    named = {_name(way, choice.blocks): way for way in choice.ways}
    width = max(map(len, named))
    lines = [f"{'':<{width}} {'samples/s':>10} {'s/step':>8}"]
    lines += [
        f"{name:<{width}} {way.samples_per_second:>10.4g} {way.step_seconds:>8.4g}" for name, way in named.items()
    ]
    return "\n".join([*lines, f"best: {_name(choice.best, choice.blocks)}"])


def _name(way: Sharing, blocks: int) -> str:
    where = "edge-only" if way.cut == blocks else f"cut {way.cut}"
    return f"one device, {where}" if way.members is None else f"group of {way.members}, {where}"
