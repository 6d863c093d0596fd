"""Plans on the command line: one as its JSON object or in words, with its parts, and several as a table, the best first."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import typer

from edge_agent.commands.plans.placed import placed
from edge_agent.planning import FLOAT32_BITS, Conditions, Layout, Parts, Plan, Question, parts_of
from shared.placement import document_of


def print_ranked(
    question: Question, plans: Sequence[Plan], at: Conditions | None = None, notes: Sequence[str] = (), *, as_json: bool
) -> None:
    """Print plans, the best first. at: if given, the best is described by what its parts take under these conditions."""
    best = plans[0]
    parts = None if at is None else parts_of(question, best.layout, at)
    if as_json:
        ranking = {"ranked": [_fields(question, plan) for plan in plans]} if parts is None or len(plans) > 1 else {}
        described = {} if parts is None else _described_fields(question, best, parts) | {"notes": list(notes)}
        typer.echo(json.dumps(described | ranking))
        return
    lines = _table(plans) if parts is None else [*_described(best, parts), *_table(plans[1:])]
    typer.echo("\n".join([*lines, *(f"  note: {note}" for note in notes)]))


def _described_fields(question: Question, plan: Plan, parts: Parts) -> dict[str, object]:
    return {
        **_fields(question, plan),
        "placement": document_of(placed(question.profile, plan.layout)),
        "worker_seconds": parts.workers,
        "link_seconds": [{"between": list(link), "up": up, "down": down} for link, (up, down) in parts.links.items()],
        "migration_seconds": plan.migration_seconds,
        "evaluated": plan.evaluated,
    }


def _table(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a heading and a line a plan; nothing for no plans."""
    width = max((len(plan.name) for plan in plans), default=0)
    if plans:
        yield f"{'':<{width}} {'samples/s':>10} {'s/step':>8}  layout"
    for plan in plans:
        pace = f"{plan.name:<{width}} {plan.samples_per_second:>10.4g} {plan.seconds_per_step:>8.4g}"
        yield f"{pace}  {plan.layout}" + (f": {plan.reason}" if plan.reason else "")


def layout_fields(layout: Layout, names: Sequence[str]) -> dict[str, object]:
    """Return the fields of a layout. names: of all workers that may have blocks.

    Of two workers: cut, staleness and bits. Of more: those that have blocks, cuts, staleness and bits, which are lists; where
    they share samples, without cuts and bits.
    """
    if len(names) == 2:
        bits = (*layout.bits, FLOAT32_BITS)[0]
        return {"cut": layout.tiles[0].stop, "staleness": layout.staleness, "bits": bits}
    several: dict[str, object] = {"workers": list(layout.workers), "staleness": layout.staleness}
    return several | ({"cuts": list(layout.cuts), "bits": list(layout.bits)} if layout.is_stacked else {})


def _fields(question: Question, plan: Plan) -> dict[str, object]:
    fields = {"name": plan.name} if plan.name else dict[str, object]()
    fields |= layout_fields(plan.layout, question.profile.names) | {"seconds_per_step": plan.seconds_per_step}
    if plan.members is not None:
        fields["members"] = plan.members
    fields["samples_per_second"] = plan.samples_per_second
    return fields | ({"reason": plan.reason} if plan.reason else {})


def _described(plan: Plan, parts: Parts) -> Iterator[str]:
    layout = plan.layout
    if layout.is_stacked:
        yield str(layout)
    else:
        yield f"{', '.join(layout.workers)} share the samples, staleness {layout.staleness}"
    yield f"  {plan.seconds_per_step:.4g} s a step" + (f": {plan.reason}" if plan.reason else "")
    yield from _stacked(layout, parts) if layout.is_stacked else _shared(layout, parts)
    if plan.migration_seconds:
        yield f"  {plan.migration_seconds:.4g} s to move the blocks there"
    if plan.evaluated > 1:
        yield f"  best of {plan.evaluated}"


def _stacked(layout: Layout, parts: Parts) -> Iterator[str]:
    """Yield a line a worker and a line a link, in their order."""
    links = [parts.links.get((near.worker, far.worker), (0.0, 0.0)) for near, far in pairwise(layout.tiles)]
    for place, tile in enumerate(layout.tiles):
        yield f"  {tile.worker}: blocks [{tile.first}, {tile.stop}), {parts.workers[tile.worker]:.4g} s"
        for bits, (up, down) in list(zip(layout.bits, links, strict=True))[place : place + 1]:
            yield f"    {bits} bits up {up:.4g} s, down {down:.4g} s"


def _shared(layout: Layout, parts: Parts) -> Iterator[str]:
    """Yield a line a tile, a worker, a link, and a width."""
    for tile in layout.tiles:
        yield f"  {tile.worker}: blocks [{tile.first}, {tile.stop}) on samples {tile.rows}"
    for worker, seconds in parts.workers.items():
        yield f"  {worker} works {seconds:.4g} s"
    for (near, far), (up, down) in parts.links.items():
        yield f"  {near} to {far} {up:.4g} s, back {down:.4g} s"
    for route, bits in layout.widths:
        yield f"  {route.sender} to {route.receiver}: features in {bits} bits"
