"""The options that `edge-agent plan` and `edge-agent simulate` share, and their evaluation."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.planner_names import DEFAULT_BITS, STRATEGY_NAMES
from isthmus_entry_points import importing
from shared.errors import PlanError

if TYPE_CHECKING:
    from edge_agent.planning import Profile, Rates

LINK, CHOICE, TIERS, GROUP = "The link", "What may be chosen", "Three tiers", "The group"
"""Panels of the help."""
PROFILE = typer.Option("--profile", help="What was measured of two workers, of a chain or of three tiers, a JSON file.")
ProfileFile = Annotated[Path, PROFILE]
AllowEdgeOnly = Annotated[
    bool,
    typer.Option(
        "--allow-edge-only/--no-edge-only", help="Whether all blocks may be on the edge.", rich_help_panel=CHOICE
    ),
]
RoundTrip = Annotated[
    str | None,
    typer.Option(
        help="Time from the edge to the trainer and back, as 40ms; that of the profile when absent.",
        rich_help_panel=LINK,
    ),
]
Staleness = Annotated[
    int | None,
    typer.Option(
        help="K to plan with; searched up to the profile's max_staleness when absent.", rich_help_panel=CHOICE
    ),
]
Bits = Annotated[str, typer.Option(help="Bit widths to consider, as 2,4,8,32.", rich_help_panel=CHOICE)]
Members = Annotated[
    int,
    typer.Option("--members", help="Members of the group, which share the trainer's link.", rich_help_panel=GROUP),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

GIVEN, ANY = "given", "any"
"""Values of --order."""
ALL = "all"
"""Value of --strategy."""
BITS_TEXT = ",".join(map(str, DEFAULT_BITS))


def read_profile(path: Path) -> "Profile":
    """The profile in a file. Raises PlanError."""
    with importing("edge-agent"):
        from edge_agent.planning import load_profile
    return load_profile(path)


def read_link(uplink: str, downlink: str, round_trip: str | None, profile: "Profile") -> "Rates":
    """Return the rates that the options of these names say. Raises PlanError."""
    from edge_agent.planning import Rates, parse_rate

    seconds = round_trip_seconds(round_trip, profile)
    return Rates(parse_rate(uplink, "--uplink"), parse_rate(downlink, "--downlink"), seconds)


def round_trip_seconds(text: str | None, profile: "Profile") -> float:
    """Return the round trip of --round-trip, or of the profile's first link where the option says nothing. Raises PlanError."""
    from edge_agent.planning import parse_seconds

    if text is not None:
        return parse_seconds(text, "--round-trip")
    return profile.round_trip_seconds(*profile.names[:2]) if len(profile.names) > 1 else 0.0


def refuse(context: typer.Context, names: set[str], reason: str) -> None:
    """Refuse options that say nothing about what is asked, of which these are the parameters. PlanError with the reason."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name in names:
            raise PlanError(f"{parameter.opts[0]} {reason}; leave it out")


def refuse_others(context: typer.Context, allowed: set[str], reason: str) -> None:
    """Refuse all options but these, and the profile. PlanError with the reason."""
    every = {parameter.name or "" for parameter in context.command.params}
    refuse(context, every - allowed - {"profile"}, reason)


def refuse_forbidden(planners: Collection[str], *, allow_edge_only: bool) -> None:
    """Refuse to plan with edge-only where it is forbidden. Raises PlanError."""
    if "edge-only" in planners and not allow_edge_only:
        raise PlanError("--planner edge-only plans what --no-edge-only forbids; leave one of them out")


def parse_bits(text: str) -> tuple[int, ...]:
    """Bit widths written as 2,4,8,32."""
    from shared.registry import bit_widths

    try:
        widths = tuple(int(field) for field in text.split(","))
    except ValueError as error:
        raise PlanError(f'--bits is "{text}"; it must be whole numbers with commas between, as 2,4,8,32') from error
    if not set(widths) <= set(bit_widths()):
        raise PlanError(f"--bits is {text}; the bit widths of codecs are {', '.join(map(str, bit_widths()))}")
    return widths


def named(strategies: Sequence[str]) -> tuple[str, ...]:
    """Return the strategies that `--strategy` names, each once. Raises PlanError."""
    if unknown := [name for name in strategies if name not in (ALL, *STRATEGY_NAMES)]:
        raise PlanError(f"--strategy is {unknown[0]!r}; it must be {ALL}, or one of {', '.join(STRATEGY_NAMES)}")
    return STRATEGY_NAMES if ALL in strategies else tuple(dict.fromkeys(strategies))
