"""A placement for its reader: on a terminal, as a picture of the grid (blocks down, samples across) and three tables, or as
JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from edge_agent.experiment.placement_report import Memory, PlacementReport, ReportedCrossing, Visibility
from shared.placement import Placement, Tile, document_of

SCHEMA = "isthmus.placement-report/v1"
_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")
_GRID_CHARACTERS = 40
_NAME_CHARACTERS = 18
"""The width of a block's name; a longer one keeps its end, which tells it from others."""


def to_document(report: PlacementReport) -> dict[str, Any]:
    """The report as JSON; its placement can be read again as a file (schema isthmus.placement/v1)."""
    return {
        "schema": SCHEMA,
        "placement": document_of(report.placement),
        "blocks": list(report.block_names),
        "crossings": [
            {
                "from": one.crossing.sender,
                "to": one.crossing.receiver,
                "cargo": str(one.crossing.cargo),
                "block": one.crossing.index,
                "samples": [one.crossing.rows.begin, one.crossing.rows.end],
                "codec": one.codec,
                "bytes": one.bytes,
            }
            for one in report.transfers
        ],
        "memory": [asdict(one) | {"total": one.total} for one in report.memory],
        "sees": [asdict(one) for one in report.visibility],
    }


def render(report: PlacementReport, console: Console) -> None:
    """Print the whole report. Names of blocks and workers are shown as they are, not as markup."""
    placement = report.placement
    colours = {worker: _COLOURS[index % len(_COLOURS)] for index, worker in enumerate(placement.workers)}
    for line in picture(report, colours):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(transfers_table(report) if report.transfers else "nothing crosses in a step")
    console.print(memory_table(report.memory, placement.staleness))
    console.print(visibility_table(report.visibility, placement.blocks))


def picture(report: PlacementReport, colours: dict[str, str]) -> Iterator[Text]:
    """The grid line by line: a line a block, a field a worker, as wide as its share of the samples."""
    placement = report.placement
    last = str(placement.batch_size)
    margin = len(str(placement.blocks - 1)) + 1 + _NAME_CHARACTERS + 1
    yield Text(f"{'samples':>{margin - 1}} 0{last:>{_GRID_CHARACTERS - 1}}")
    for block, name in enumerate(report.block_names):
        line = Text(f"{block:>{margin - _NAME_CHARACTERS - 2}} {name[-_NAME_CHARACTERS:]:<{_NAME_CHARACTERS}} ")
        for tile in placement.holders(block):
            line.append(_field(tile, placement), style=f"black on {colours[tile.worker]}")
        if len(placement.holders(block)) > 1 or placement.owner(block) != placement.holders(block)[0].worker:
            line.append(f" updated by {placement.owner(block)}")
        yield line
    heads = ", ".join(tile.worker for tile in placement.holders(placement.blocks - 1))
    sources = ", ".join(dict.fromkeys(source.worker for source in placement.sources))
    yield Text(f"samples from {sources}; loss at {heads}; K = {placement.staleness}")


def _field(tile: Tile, placement: Placement) -> str:
    begin, end = (bound * _GRID_CHARACTERS // placement.batch_size for bound in (tile.rows.begin, tile.rows.end))
    width = end - begin
    whole = tile.rows.count == placement.batch_size
    label = tile.worker if whole or len(f"{tile.worker} {tile.rows}") > width - 2 else f"{tile.worker} {tile.rows}"
    return f"|{label[: max(width - 2, 0)]:^{max(width - 2, 0)}}|"[:width]


def transfers_table(report: PlacementReport) -> Table:
    """Tabulate the crossings of a step of a whole batch, by their pair of workers and their direction."""
    names, rank = report.block_names, report.placement.workers.index
    ordered = sorted(report.transfers, key=lambda one: tuple(map(rank, _direction(one))))
    table = Table(
        Column("from", no_wrap=True),
        Column("to", no_wrap=True),
        Column("what", no_wrap=True),
        Column("at block", overflow="fold"),
        Column("samples", no_wrap=True),
        Column("codec", no_wrap=True),
        Column("bytes", justify="right", no_wrap=True),
        title="what crosses in a step",
    )
    for (sender, receiver), group in groupby(ordered, key=_direction):
        crossing = list(group)
        for one in crossing:
            at = "loss" if one.crossing.index == len(names) else f"{one.crossing.index} {names[one.crossing.index]}"
            cargo = str(one.crossing.cargo).replace("_", " ")
            table.add_row(sender, receiver, cargo, Text(at), Text(str(one.crossing.rows)), one.codec, f"{one.bytes:,}")
        if len(crossing) > 1:
            table.add_row(sender, receiver, "all", "", "", "", f"{sum(one.bytes for one in crossing):,}")
        table.add_section()
    return table


def _direction(transfer: ReportedCrossing) -> tuple[str, str]:
    return transfer.crossing.sender, transfer.crossing.receiver


def memory_table(memory: Sequence[Memory], staleness: int) -> Table:
    """Tabulate the memory of each worker, in KiB; features of all samples only where they are kept."""
    kept = ("kept",) if any(one.kept for one in memory) else ()
    columns = ("weights", "gradients", "optimizer", "one batch", "waiting", "ahead", *kept, "in all")
    narrow = (0, 1, 0, 0)  # all columns but `kept` fit into 80 characters
    table = Table("worker", title=f"KiB that each worker holds at K = {staleness}", padding=narrow)
    for column in columns:
        table.add_column(column, justify="right")
    for one in memory:
        for_batches = (one.weights, one.gradients, one.optimizer, one.activations, one.waiting, one.ahead)
        numbers = (*for_batches, *([one.kept] if kept else ()), one.total)
        table.add_row(one.worker, *(f"{number / 1024:,.1f}" for number in numbers))
    return table


def visibility_table(visibility: Sequence[Visibility], blocks: int) -> Table:
    """Tabulate the data that each worker gets to see."""
    table = Table(
        *("worker", "inputs", "labels", "outputs", "gradients tell", "features before", "weights of"),
        title="who sees what in training",
    )
    for one in visibility:
        seen = ("yes" if what else "no" for what in (one.inputs, one.labels, one.outputs))
        told = ", ".join(one.gradients_tell) or "none"
        table.add_row(one.worker, *seen, told, _listed(one.features, blocks), _listed(one.weights, blocks))
    return table


def _listed(indices: Sequence[int], blocks: int) -> str:
    """Blocks in short: runs of them as ranges."""
    if len(indices) == blocks:
        return "all blocks"
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join(" to ".join(map(str, run)) for run in runs) or "none"
