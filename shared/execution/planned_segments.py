"""The segments of a worker's program with all that is known of them beforehand, so that no step works it out again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from shared.placement import (
    Backward,
    Cargo,
    Clip,
    Crossing,
    Forward,
    Loss,
    ModelFacts,
    Norms,
    Operation,
    Order,
    Program,
    Receive,
    Send,
    Sum,
    Tile,
    Update,
    urgency_of_segment,
)


class Updates(NamedTuple):
    """Blocks whose updates follow one another, so that they are one."""

    blocks: tuple[int, ...]
    at_once: bool
    """True if the `Learn` before has left their gradients in them."""


class Learn(NamedTuple):
    """Forward, loss and backward of the stage that ends with the model, of the same samples: they need no second graph."""

    stage: Tile
    updates_follow: bool
    """True if the next operation updates all blocks that have learned, so that their gradients need not be taken."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """The work that a worker does in one go."""

    computed: tuple[Operation | Learn | Updates, ...]
    """Operations except receiving and sending."""
    receives: tuple[Crossing, ...]
    sends: "Sends"
    name: str
    """Name of the computation, in words."""
    after: tuple[int, ...]
    """See `Order`, as of `behind`."""
    behind: tuple[int, ...]
    urgency: int
    """See `urgency_of_segment`."""


Sends = tuple[tuple[Crossing, int], ...]
"""Crossings that leave, each with its place among all that the worker sends in a step."""


def planned(segments: tuple[Program, ...], model: ModelFacts, places: Iterator[int]) -> tuple[PlannedSegment, ...]:
    """The same segments, of a program for this model. places: of what they send."""
    order = Order.of(segments)
    return tuple(
        PlannedSegment(
            tuple(_joined([one for one in segment if not isinstance(one, Receive | Send)], model)),
            tuple(one.crossing for one in segment if isinstance(one, Receive)),
            placed((one.crossing for one in segment if isinstance(one, Send)), places),
            _name_of(segment),
            after,
            behind,
            urgency_of_segment(segment),
        )
        for segment, after, behind in zip(segments, order.after, order.behind, strict=True)
    )


def placed(crossings: Iterable[Crossing], places: Iterator[int]) -> Sends:
    """Give crossings the next places."""
    return tuple(zip(crossings, places, strict=False))


def used_up(segments: tuple[Program, ...], model: ModelFacts) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """By segment, what it needs last of all, and what it comes to have and none needs: tensors, and error gradients.

    Both are places in `ModelFacts.values`.
    """
    values, gradients = (
        _ending(segments, model, *each) for each in ((_values_of, _values_at), (_gradients_of, _gradients_at))
    )
    return tuple(zip(values, gradients, strict=True))


_Places = Callable[[Operation, ModelFacts], Sequence[int]]


def _ending(segments: tuple[Program, ...], model: ModelFacts, needed: _Places, there: _Places) -> list[tuple[int, ...]]:
    """By segment, the places that it is the last to need, and those that it comes to have and that none needs."""
    numbered = [(number, one) for number, segment in enumerate(segments) for one in segment]
    last = {place: number for number, one in numbered for place in needed(one, model)}
    ending: list[set[int]] = [set() for _ in segments]
    for place, number in last.items():
        ending[number].add(place)
    for number, one in numbered:
        ending[number].update(place for place in there(one, model) if place not in last)
    return [tuple(places) for places in ending]


def _joined(operations: list[Operation], model: ModelFacts) -> Iterator[Operation | Learn | Updates]:
    at, at_once = 0, False
    while at < len(operations):
        match operations[at : at + 3]:
            case [Forward(stage), Loss(rows), Backward(same, _)] if same == stage and rows == stage.rows:
                learning = {block for block in model.used_with(stage.blocks) if model.blocks[block].trainable}
                at_once = learning <= set(_updated(operations, at + 3))
                yield Learn(stage, at_once)
                at += 3
            case [Update(), *_]:
                row = _updated(operations, at)
                yield Updates(row, at_once)
                at += len(row)
                at_once = False
            case [other, *_]:
                yield other
                at, at_once = at + 1, False


def _updated(operations: Sequence[Operation], first: int) -> tuple[int, ...]:
    """The blocks that are updated first of all from this operation on."""
    row = takewhile(lambda one: isinstance(one, Update), islice(operations, first, None))
    return tuple(one.block for one in row if isinstance(one, Update))


def _name_of(segment: Program) -> str:
    kinds = (type(one) for one in segment if isinstance(one, Forward | Backward | Sum | Norms | Clip | Update))
    return ", ".join(dict.fromkeys(kind.__name__.lower() for kind in kinds))


def _values_of(operation: Operation, model: ModelFacts) -> list[int]:
    match operation:
        case Forward(stage):
            feature = model.features[stage.first]
            return [feature[slot] for slot in model.read_slots(stage.first, stage.stop)]
        case Send(crossing) if crossing.cargo is Cargo.FEATURE:
            return [model.features[crossing.index][slot] for slot in crossing.slots]
        case Loss():
            return list(model.features[-1])
    return []


def _gradients_of(operation: Operation, model: ModelFacts) -> list[int]:
    match operation:
        case Backward(stage, _):
            feature = model.features[stage.stop]
            return [feature[slot] for slot in model.answered_slots(stage.first, stage.stop)]
        case Send(crossing) if crossing.cargo is Cargo.ERROR_GRADIENT:
            return [model.features[crossing.index][slot] for slot in crossing.slots]
    return []


def _values_at(operation: Operation, model: ModelFacts) -> Sequence[int]:
    """The tensors that are there after an operation; before a forward, those that it is given."""
    match operation:
        case Forward(stage):
            return (*model.features[stage.first], *model.features[stage.stop])
        case Receive(crossing) if crossing.cargo is Cargo.FEATURE:
            return model.features[crossing.index]
    return ()


def _gradients_at(operation: Operation, model: ModelFacts) -> Sequence[int]:
    match operation:
        case Loss():
            return model.features[-1]
        case Backward(stage, _):
            return model.features[stage.first]
        case Receive(crossing) if crossing.cargo is Cargo.ERROR_GRADIENT:
            return model.features[crossing.index]
    return ()
