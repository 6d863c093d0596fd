"""The segments of a worker's program with all that is known of them beforehand, so that no step works it out again."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from shared.placement import (
    Backward,
    Cargo,
    Crossing,
    Forward,
    Loss,
    ModelFacts,
    Operation,
    Program,
    Receive,
    Send,
    Sum,
    Tile,
    Update,
)


class Updates(NamedTuple):
    """Blocks whose updates follow one another, so that they are one."""

    blocks: tuple[int, ...]
    at_once: bool
    """Whether the `Learning` before has left their gradients in them."""


class Learning(NamedTuple):
    """Forward, loss and backward of the stage that ends with the model, of the same samples: they need no second graph."""

    stage: Tile
    updates_follow: bool
    """Whether the next operation updates all blocks of the stage that learn, so that nobody has to take their gradients."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """What a worker does in one go."""

    computed: tuple[Operation | Learning | Updates, ...]
    """All but what is received and sent."""
    receives: tuple[Crossing, ...]
    sends: tuple[Crossing, ...]
    name: str
    """What it computes, in words."""
    goes_forward: bool
    """Whether it begins with weights that K bounds the age of."""
    features_needed: frozenset[int]
    """The features that segments after this one need."""
    gradients_needed: frozenset[int]
    """The error gradients that they need."""


def planned(segments: tuple[Program, ...], model: ModelFacts) -> tuple[PlannedSegment, ...]:
    """The same segments, of a program for this model."""
    blocks = len(model.blocks)
    return tuple(
        PlannedSegment(
            tuple(_joined([one for one in segment if not isinstance(one, Receive | Send)], model)),
            tuple(one.crossing for one in segment if isinstance(one, Receive)),
            tuple(one.crossing for one in segment if isinstance(one, Send)),
            _name_of(segment),
            any(isinstance(one, Forward) for one in segment),
            frozenset(index for one in _after(segments, at) if (index := _feature_of(one, blocks)) is not None),
            frozenset(index for one in _after(segments, at) if (index := _gradient_of(one)) is not None),
        )
        for at, segment in enumerate(segments)
    )


def _joined(operations: list[Operation], model: ModelFacts) -> Iterator[Operation | Learning | Updates]:
    at, at_once = 0, False
    while at < len(operations):
        match operations[at:]:
            case [Forward(stage), Loss(rows), Backward(same, _), *left] if same == stage and rows == stage.rows:
                at_once = {block for block in stage.blocks if model.blocks[block].trainable} <= set(_updated(left))
                yield Learning(stage, at_once)
                at += 3
            case [Update(), *_] as left:
                row = _updated(left)
                yield Updates(row, at_once)
                at += len(row)
                at_once = False
            case [other, *_]:
                yield other
                at, at_once = at + 1, False


def _updated(operations: list[Operation]) -> tuple[int, ...]:
    """The blocks that are updated first of all."""
    row = takewhile(lambda one: isinstance(one, Update), operations)
    return tuple(one.block for one in row if isinstance(one, Update))


def _after(segments: tuple[Program, ...], at: int) -> list[Operation]:
    return [one for segment in segments[at + 1 :] for one in segment]


def _name_of(segment: Program) -> str:
    kinds = (type(one) for one in segment if isinstance(one, Forward | Backward | Sum | Update))
    return ", ".join(dict.fromkeys(kind.__name__.lower() for kind in kinds))


def _feature_of(operation: Operation, blocks: int) -> int | None:
    match operation:
        case Forward(stage):
            return stage.first
        case Send(crossing) if crossing.cargo is Cargo.FEATURE:
            return crossing.index
        case Loss():
            return blocks
    return None


def _gradient_of(operation: Operation) -> int | None:
    match operation:
        case Backward(stage, _):
            return stage.stop
        case Send(crossing) if crossing.cargo is Cargo.ERROR_GRADIENT:
            return crossing.index
    return None
