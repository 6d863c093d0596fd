"""Presentation of a model's blocks to a person and to a program. Measures nothing and computes next to nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from edge_agent.experiment.first_weights import FirstWeights
from edge_agent.experiment.model_report import BlockRow
from shared.model.division.seams import Seam


def render_table(rows: Sequence[BlockRow]) -> Table:
    """Return a table with one line a block."""
    table = Table(title=f"{len(rows)} blocks; KiB of parameters and of the optimizer's state")
    table.add_column("block", justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")  # names may differ at their end only
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("KiB", justify="right", no_wrap=True)
    table.add_column("state", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.block),
            row.name if row.trainable or not row.parameters else f"{row.name} (frozen)",
            f"{row.parameters:,}",
            f"{row.parameter_bytes / 1024:,.1f}",
            f"{row.optimizer_bytes / 1024:,.1f}",
        )
    return table


def render_slots(rows: Sequence[BlockRow]) -> Table:
    """Return a table with one line for each tensor that a block hands on."""
    table = Table(title="what each block hands on, for the example batch; raw: to no worker without permission")
    table.add_column("block", justify="right", no_wrap=True)
    table.add_column("tensor", justify="right", no_wrap=True)
    table.add_column("KiB", justify="right", no_wrap=True)
    table.add_column("made by", overflow="fold")
    table.add_column("", no_wrap=True)
    for row in rows:
        for place, slot in enumerate(row.slots):
            table.add_row(
                "" if place else str(row.block),
                f"{' x '.join(map(str, slot.shape))} {slot.dtype}",
                f"{slot.bytes / 1024:,.1f}",
                slot.made_by,
                "raw" if slot.raw else "",
            )
    return table


def describe_seams(seams: Sequence[Seam]) -> str:
    """Two lines for each two layers in one block: which, and why."""
    if not seams:
        return "There is a cut in front of each layer with weights but the first."
    pairs = (f"{seam.before!r} and {seam.after!r} are in one block:\n  {seam.reason}" for seam in seams)
    return "\n".join(
        [*pairs, "A method blocks() of the model may say what its blocks are; they may hand on several tensors."]
    )


def describe_first_weights(first: FirstWeights) -> str:
    """A line of the file of first weights, and what of it is loaded."""
    lists = "; ".join(f"{key.replace('_', ' ')}: {names}" for key, names in first.described().items())
    return f"The weights of {first.path}: {lists}"


def to_json(rows: Sequence[BlockRow], seams: Sequence[Seam] | None) -> str:
    """A list with one object a block, keys as in `BlockRow`; with seams, an object of both lists, keys as in `Seam`."""
    blocks = [asdict(row) for row in rows]
    document = blocks if seams is None else {"blocks": blocks, "not_cut": [asdict(seam) for seam in seams]}
    return json.dumps(document, indent=2)
