"""The options that `edge-agent plan` and `edge-agent simulate` share, and what is made of them."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from shared.errors import PlanError
from shared.planner_names import DEFAULT_BITS, EDGE_ONLY
from shared.registry import bit_widths

ProfileFile = Annotated[Path | None, typer.Option("--profile", help="Profile of the model on the pair, a JSON file.")]
StagesFile = Annotated[
    Path | None,
    typer.Option("--stages", help="The model on a chain of workers, a JSON file, in the place of a profile."),
]
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

GIVEN, ANY = "given", "any"
"""What --order may be."""
BITS_TEXT = ",".join(map(str, DEFAULT_BITS))


def refuse_others(context: typer.Context, allowed: set[str]) -> None:
    """Refuse the options that say nothing about a chain."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in allowed:
            raise PlanError(f"{parameter.opts[0]} goes with --profile and says nothing about a chain; leave it out")


def refuse_forbidden(planners: Collection[str], *, allow_edge_only: bool) -> None:
    """Refuse to plan with edge-only where it is forbidden. Raises PlanError."""
    if EDGE_ONLY in planners and not allow_edge_only:
        raise PlanError(f"--planner {EDGE_ONLY} plans what --no-edge-only forbids; leave one of them out")


def parse_bits(text: str) -> tuple[int, ...]:
    """Bit widths written as 2,4,8,32."""
    try:
        widths = tuple(int(field) for field in text.split(","))
    except ValueError as error:
        raise PlanError(f'--bits is "{text}"; it must be whole numbers with commas between, as 2,4,8,32') from error
    if not set(widths) <= set(bit_widths()):
        raise PlanError(f"--bits is {text}; the bit widths of codecs are {', '.join(map(str, bit_widths()))}")
    return widths
