"""`edge-agent choose`: what each candidate would be worth, the fastest first.

Parse, call edge_agent.planning, print. An error is a PlanError; the app makes one line and an exit code of it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_agent.commands.plans.plan_options import BITS_TEXT, AllowEdgeOnly, AsJson, Bits, Staleness, parse_bits
from isthmus_entry_points import importing

if TYPE_CHECKING:
    from edge_agent.planning.choice import Ranked


def choose(
    profile: Annotated[Path, typer.Option(help="What was measured of two workers, a JSON file.")],
    candidates: Annotated[
        Path,
        typer.Option(
            help="JSON list of trainers: name, uplink and downlink in bit/s; round_trip_seconds, cloud_factor, busy and "
            "sessions where they are known."
        ),
    ],
    staleness: Staleness = None,
    bits: Bits = BITS_TEXT,
    allow_edge_only: AllowEdgeOnly = True,
    as_json: AsJson = False,
) -> None:
    """Rank trainers by the seconds of a step with the best cut, bits and K for each, the device alone among them."""
    with importing("edge-agent"):
        from edge_agent.planning import Question, SearchSpace, load_profile
        from edge_agent.planning.choice import load_candidates, rank

    loaded = load_profile(profile)
    question = Question(loaded, SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only))
    ranked = rank(question, load_candidates(candidates, taken=loaded.names[:1]))
    typer.echo(json.dumps([ranked_fields(one) for one in ranked]) if as_json else describe(ranked))


def ranked_fields(one: "Ranked") -> dict[str, object]:
    """Return a candidate's JSON object."""
    return {
        "name": one.name,
        "cut": one.cut,
        "bits": one.bits,
        "staleness": one.layout.staleness,
        "seconds_per_step": one.seconds_per_step,
    }


def describe(ranked: Sequence["Ranked"]) -> str:
    """Return the ranking as a table."""
    width = max(len("candidate"), *(len(one.name) for one in ranked))
    lines = [f"{'candidate':<{width}}  {'s/step':>8}  layout"]
    lines += [f"{one.name:<{width}}  {one.seconds_per_step:>8.4f}  {one.layout}" for one in ranked]
    return "\n".join(lines)
