"""What each worker does in one step, as data: the runtime executes it, the simulator and the cost model read it.

A program lists operations in an order in which they can be done one after the other. Every dependency between workers
goes from a stage to one that begins at a later block (forward) or an earlier one (backward), and a worker's own stages stand
in that order too, so no two workers wait for each other. A runtime that does an operation as soon as its inputs are there
computes the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.placement.derived import (
    Crossing,
    crossings,
    gradient_crossings,
    loss_rows,
    stages,
    weight_crossings,
)
from shared.placement.facts import ModelFacts
from shared.placement.tiles import Cargo, Placement, Rows, Tile


@dataclass(frozen=True, slots=True)
class Take:
    """Load raw samples `rows` of the batch, and their labels."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Send:
    """Send what the crossing says; nobody waits for it."""

    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait until what the crossing says has come."""

    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the blocks of a stage; its input is complete, in the order of the samples."""

    stage: Tile


@dataclass(frozen=True, slots=True)
class Loss:
    """Compute the loss of `rows` and its gradient at the output."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Backward:
    """Take the error gradient at the output of a stage back to its input; leaves each block's gradient part."""

    stage: Tile
    input_gradient: bool
    """Whether anything before the stage learns."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Add the gradient parts of a shared block, left to right in this order, in float32."""

    block: int
    parts: tuple[Crossing | Rows, ...]
    """Parts by their first sample: a crossing that was received, or the rows of the worker's own part."""


@dataclass(frozen=True, slots=True)
class Update:
    """Clip and apply the gradient of a block that this worker owns."""

    block: int


Operation = Take | Send | Receive | Forward | Loss | Backward | Sum | Update
Program = tuple[Operation, ...]


def program(placement: Placement, model: ModelFacts, worker: str, *, training: bool = True) -> Program:
    """What `worker` does in one step of a valid placement; empty for a worker that has no part in it.

    training: False evaluates a batch: no more than the way forward, to the loss.
    """
    operations = _operations(placement, model, worker)
    return tuple(one for one in operations if training or _goes_forward(one))


def _goes_forward(operation: Operation) -> bool:
    if isinstance(operation, Send | Receive):
        return operation.crossing.cargo in (Cargo.FEATURE, Cargo.LABEL)
    return isinstance(operation, Take | Forward | Loss)


def _operations(placement: Placement, model: ModelFacts, worker: str) -> Iterator[Operation]:
    forward = crossings(placement)
    for source in placement.sources:
        if source.worker == worker:
            yield Take(source.rows)
    # The loss is computed last: its labels go first, beside the first feature.
    yield from _sent(forward, worker, Cargo.LABEL)
    yield from _sent(forward, worker, Cargo.FEATURE, 0)
    for stage in stages(placement, worker):
        yield from _received(forward, worker, Cargo.FEATURE, stage.first)
        if stage.stop == placement.blocks:  # so that nothing is waited for between the last block and its backward
            yield from _received(forward, worker, Cargo.LABEL)
        yield Forward(stage)
        yield from _sent(forward, worker, Cargo.FEATURE, stage.stop)
    if (rows := loss_rows(placement, worker)) is not None:
        yield Loss(rows)
    yield from _way_back(placement, model, worker)
    yield from _updates(placement, model, worker)


def _way_back(placement: Placement, model: ModelFacts, worker: str) -> Iterator[Operation]:
    backward = gradient_crossings(placement, model)
    weights = weight_crossings(placement, model)
    for stage in reversed(stages(placement, worker)):
        if not model.learns_below(stage.stop):
            continue
        yield from _received(backward, worker, Cargo.ERROR_GRADIENT, stage.stop)
        yield Backward(stage, input_gradient=model.learns_below(stage.first))
        yield from _sent(backward, worker, Cargo.ERROR_GRADIENT, stage.first)
    for block in reversed(range(placement.blocks)):
        yield from _sent(weights, worker, Cargo.WEIGHT_GRADIENT, block)


def _updates(placement: Placement, model: ModelFacts, worker: str) -> Iterator[Operation]:
    weights = weight_crossings(placement, model)
    for block in reversed(range(placement.blocks)):
        if placement.owner(block) != worker or not model.blocks[block].changes:
            continue
        parts = [one for one in weights if one.cargo is Cargo.WEIGHT_GRADIENT and one.index == block]
        yield from (Receive(part) for part in parts)
        if parts:
            own = [tile.rows for tile in placement.holders(block) if tile.worker == worker]
            yield Sum(block, tuple(sorted([*parts, *own], key=_first_sample)))
        yield Update(block)
        yield from _sent(weights, worker, Cargo.WEIGHTS, block)
    for block in range(placement.blocks):
        yield from _received(weights, worker, Cargo.WEIGHTS, block)


def _first_sample(part: Crossing | Rows) -> int:
    return part.begin if isinstance(part, Rows) else part.rows.begin


def _sent(among: tuple[Crossing, ...], worker: str, cargo: Cargo, index: int | None = None) -> Iterator[Send]:
    for one in among:
        if one.sender == worker and one.cargo is cargo and index in (None, one.index):
            yield Send(one)


def _received(among: tuple[Crossing, ...], worker: str, cargo: Cargo, index: int | None = None) -> Iterator[Receive]:
    for one in among:
        if one.receiver == worker and one.cargo is cargo and index in (None, one.index):
            yield Receive(one)
