"""`edge-agent plan` of a chain: the partition of a chain of workers on the command line."""

import json
from itertools import pairwise

import typer

from edge_agent.commands.plan_options import ANY
from shared.planning import FLOAT32_BITS, Profile
from shared.planning.chain import ChainPlan, plan_any_order, plan_chain_accurately


def print_chain_plan(
    chain: Profile, bits: tuple[int, ...], staleness: int | None, order: str, *, as_json: bool
) -> None:
    """Plan and print. PlanError if that is impossible."""
    ordered = chain.ordered(plan_any_order(chain, bits, staleness).order) if order == ANY else chain
    chosen = plan_chain_accurately(ordered, bits, staleness)
    notes = notes_on(chain, chosen)
    typer.echo(json.dumps(chain_plan_fields(chosen, notes)) if as_json else describe_chain_plan(chosen, notes, chain))


def notes_on(chain: Profile, chosen: ChainPlan) -> list[str]:
    """List the assumptions of the plan."""
    notes = []
    if chain.links_stay and chosen.order != chain.names:
        notes.append(
            "the file has no links_between, so the links were taken to stay in their places whoever stands at their ends"
        )
    if chain.min_bits is None and any(bits < FLOAT32_BITS for bits in chosen.partition.bits):
        notes.append("nothing was calibrated: nobody has measured what so few bits cost in accuracy")
    return notes


def chain_plan_fields(chosen: ChainPlan, notes: list[str]) -> dict[str, object]:
    """A plan as its JSON object. link_seconds: a pair for each link, up and down."""
    return {
        "order": list(chosen.order),
        "cuts": list(chosen.partition.cuts),
        "bits": list(chosen.partition.bits),
        "seconds_per_step": chosen.seconds_per_step,
        "stage_seconds": list(chosen.cost.stage_seconds),
        "link_seconds": [list(both) for both in chosen.cost.link_seconds],
        "notes": notes,
    }


def describe_chain_plan(chosen: ChainPlan, notes: list[str], chain: Profile) -> str:
    """A plan in words: a line a stage and a line a link, in their order."""
    partition, cost = chosen.partition, chosen.cost
    runs = list(pairwise((0, *partition.cuts, len(chain))))
    lines = [f"{partition}", f"  {chosen.seconds_per_step:.4g} s a step"]
    for stage, (name, (first, stop)) in enumerate(zip(chosen.order, runs, strict=True)):
        lines.append(f"  {name}: blocks [{first}, {stop}), {cost.stage_seconds[stage]:.4g} s")
        if stage < len(cost.link_seconds):
            up, down = cost.link_seconds[stage]
            lines.append(f"    {partition.bits[stage]} bits up {up:.4g} s, down {down:.4g} s")
    return "\n".join([*lines, *(f"  note: {note}" for note in notes)])
