"""The options that `edge-agent plan` and `edge-agent simulate` share, and their evaluation."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.planner_names import DEFAULT_BITS
from isthmus_entry_points import importing
from shared.errors import PlanError
from shared.registry import bit_widths

if TYPE_CHECKING:
    from edge_agent.planning import Profile

LINK, CHOICE, TIERS = "The link", "What may be chosen", "Three tiers"
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

GIVEN, ANY = "given", "any"
"""Values of --order."""
BITS_TEXT = ",".join(map(str, DEFAULT_BITS))


def read_profile(path: Path) -> "Profile":
    """The profile in a file. Raises PlanError."""
    with importing("edge-agent"):
        from edge_agent.planning import load_profile
    return load_profile(path)


NO_CHAIN = "is for two workers and says nothing about a chain"


def refuse_others(context: typer.Context, allowed: set[str], reason: str = NO_CHAIN) -> None:
    """Refuse the options that say nothing about what is asked. PlanError with the reason."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in {*allowed, "profile"}:
            raise PlanError(f"{parameter.opts[0]} {reason}; leave it out")


def refuse_forbidden(planners: Collection[str], *, allow_edge_only: bool) -> None:
    """Refuse to plan with edge-only where it is forbidden. Raises PlanError."""
    if "edge-only" in planners and not allow_edge_only:
        raise PlanError("--planner edge-only plans what --no-edge-only forbids; leave one of them out")


def parse_bits(text: str) -> tuple[int, ...]:
    """Bit widths written as 2,4,8,32."""
    try:
        widths = tuple(int(field) for field in text.split(","))
    except ValueError as error:
        raise PlanError(f'--bits is "{text}"; it must be whole numbers with commas between, as 2,4,8,32') from error
    if not set(widths) <= set(bit_widths()):
        raise PlanError(f"--bits is {text}; the bit widths of codecs are {', '.join(map(str, bit_widths()))}")
    return widths
