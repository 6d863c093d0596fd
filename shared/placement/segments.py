"""The segments of a program: arrivals, their computation in one go, and sends. Pure.

The runtime computes a segment at a time and goes to another step in between; the cost model and the simulator count the same.
The segments of a step are done one after the other, but for shared blocks: the parts of each are added as soon as they are
there, and the new weights of each are taken as soon as they come. Between a group and its members each slice of a block goes by
itself.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple, TypeGuard

from shared.placement.derived import BlockSlice, Crossing
from shared.placement.programs import Backward, Forward, Loss, Norms, Operation, Program, Receive, Send, Sum, Take
from shared.placement.tiles import GROUP, Cargo


def segments(whole: Program) -> tuple[Program, tuple[Program, ...]]:
    """Divide a program into its sends before any computation or arrival, and the segments of the rest."""
    sent_first = tuple(itertools.takewhile(lambda one: isinstance(one, Take | Send), whole))
    rest: list[list[Operation]] = []
    last: Operation | None = None
    for operation in whole[len(sent_first) :]:
        if last is None or _begins_segment(operation, last):
            rest.append([])
        rest[-1].append(operation)
        last = operation
    return sent_first, tuple(tuple(segment) for segment in rest)


def _begins_segment(operation: Operation, last: Operation) -> bool:
    match operation:
        case Receive(crossing):
            begins_sum = crossing.cargo is Cargo.WEIGHT_GRADIENT and _is_scale(last)
            return crossing.cargo is Cargo.WEIGHTS or begins_sum or not isinstance(last, Receive)
        case Send():
            return False
        case Forward() | Backward():  # two in a row are of shared blocks
            return isinstance(last, Send) or type(last) is type(operation)
        case Norms():  # those of all blocks, so they wait for sums as for backwards
            return not isinstance(last, Forward | Loss | Backward)
    return isinstance(last, Send)


def _is_scale(operation: Operation) -> bool:
    return isinstance(operation, Receive) and operation.crossing.cargo is Cargo.SCALE


class _Lane(Enum):
    """Segments that are done one after the other, whatever becomes of those of other lanes; of the last two, in any order."""

    COMPUTE = auto()
    SUM = auto()
    """The parts of a shared block, its update, and its new weights to others."""
    PULL = auto()
    """The new weights of a shared block from its owner."""
    GIVE = auto()
    """The part of a block to a group."""
    TAKE = auto()
    """The new weights of a block from a group."""


_IN_ANY_ORDER = (_Lane.GIVE, _Lane.TAKE)


class Order(NamedTuple):
    """The order of a worker's segments."""

    after: tuple[tuple[int, ...], ...]
    """By segment, those of the same step that are done before it."""
    behind: tuple[tuple[int, ...], ...]
    """By segment that goes forward, those of step t - K - 1 that are done before: all that compute, and those that bring new
    weights of its blocks. Empty for any other segment."""
    ends: tuple[int, ...]
    """The segments that compute or add parts, without those that are before another one. A step after which they are done waits
    for new weights, or for nothing."""
    pulls: tuple[int, ...]
    """The segments that take new weights, in their order."""
    apart: tuple[int, ...]
    """The segments that give a part to a group, each as soon as it is there."""

    @classmethod
    def of(cls, segments_of_worker: tuple[Program, ...]) -> "Order":
        """Compute the order of the segments of one worker."""
        lanes = [_lane(segment) for segment in segments_of_worker]
        last = {lane: number for number, lane in enumerate(lanes)}
        given = tuple(number for number, lane in enumerate(lanes) if lane is _Lane.GIVE)
        return cls(
            _after(segments_of_worker, lanes),
            _behind(segments_of_worker, lanes, last.get(_Lane.COMPUTE)),
            (*(last[lane] for lane in (_Lane.COMPUTE, _Lane.SUM) if lane in last), *given),
            tuple(number for number, lane in enumerate(lanes) if lane in (_Lane.PULL, _Lane.TAKE)),
            given,
        )


def _after(whole: tuple[Program, ...], lanes: list[_Lane]) -> tuple[tuple[int, ...], ...]:
    last: dict[_Lane, int] = {}
    made: dict[int, int] = {}
    """The last segment that computes with a block."""
    given: dict[BlockSlice, int] = {}
    """The segment that gives the gradient of a slice to a group."""
    found: list[tuple[int, ...]] = []
    for number, (segment, lane) in enumerate(zip(whole, lanes, strict=True)):
        exchanged = [one for one in map(_exchanged, segment) if one is not None]
        own = [made[one.block] for one in exchanged if one.block in made and one not in given]
        own += [given[one] for one in exchanged if one in given]
        if _Lane.SUM in last and any(isinstance(one, Norms) for one in segment):
            own.append(last[_Lane.SUM])
        found.append(tuple({*([last[lane]] if lane in last else []), *own}))
        if lane not in _IN_ANY_ORDER:
            last[lane] = number
        made |= {block: number for one in segment if isinstance(one, Forward | Backward) for block in one.stage.blocks}
        given |= {one.crossing.of_block: number for one in segment if _gives_to_group(one)}
    return tuple(found)


def _gives_to_group(operation: Operation) -> TypeGuard[Send]:
    return isinstance(operation, Send) and operation.crossing.receiver == GROUP


def _exchanged(operation: Operation) -> BlockSlice | None:
    """The shared block whose parts are added, or whose new weights come: this worker has made its own part of it before."""
    match operation:
        case Sum(block, _):
            return BlockSlice(block)
        case Receive(crossing) if crossing.cargo is Cargo.WEIGHTS:
            return crossing.of_block
    return None


def _behind(whole: tuple[Program, ...], lanes: list[_Lane], computed: int | None) -> tuple[tuple[int, ...], ...]:
    news: dict[_Lane, dict[int, list[int]]] = {lane: defaultdict(list) for lane in (_Lane.SUM, _Lane.PULL, _Lane.TAKE)}
    """By lane, the segments that bring new weights of a block."""
    for number, (segment, lane) in enumerate(zip(whole, lanes, strict=True)):
        for one in segment:
            if isinstance(one, Sum) and lane is _Lane.SUM:
                news[lane][one.block].append(number)
            elif isinstance(one, Receive) and one.crossing.cargo is Cargo.WEIGHTS:
                news[lane][one.crossing.index].append(number)
    found: list[tuple[int, ...]] = []
    for segment in whole:
        blocks = [block for one in segment if isinstance(one, Forward) for block in one.stage.blocks]
        if not blocks or computed is None:
            found.append(())
            continue
        needed = {lane: [one for block in blocks for one in numbers.get(block, ())] for lane, numbers in news.items()}
        taken = needed.pop(_Lane.TAKE)
        found.append((computed, *(max(numbers) for numbers in needed.values() if numbers), *taken))
    return tuple(found)


def _lane(segment: Program) -> _Lane:
    match segment[0]:
        case Receive(crossing) if crossing.cargo is Cargo.WEIGHTS:
            return _Lane.TAKE if crossing.sender == GROUP else _Lane.PULL
        case Receive(crossing) if crossing.cargo is Cargo.WEIGHT_GRADIENT:
            return _Lane.GIVE if any(map(_gives_to_group, segment)) else _Lane.SUM
    return _Lane.COMPUTE


def urgency_of_segment(segment: Program) -> int:
    """Return how soon a segment is to be computed, of those that can be: the sums of shared blocks and what goes to a group
    first, because others wait for the weights, and then the rest of a way back, because others wait for its parts. 0 for any
    other segment."""
    if any(isinstance(one, Sum) for one in segment) or _lane(segment) is _Lane.GIVE:
        return 2
    return 1 if isinstance(segment[0], Backward) else 0


def answering_segment(segments_of_worker: tuple[Program, ...]) -> int:
    """Return the segment of a worker after which another step may come to it: it has then used its tensors, and others can
    continue.

    An update may still be under way, and its weights too: workers that need the weights wait for them.
    """
    answering = [number for number, one in enumerate(segments_of_worker) if any(map(_uses_tensors, one))]
    return answering[-1] if answering else len(segments_of_worker) - 1


class Waiting:
    """The segments of all workers that a worker has waited for when it has done some of its own."""

    def __init__(self, of_workers: Mapping[str, tuple[Program, ...]]) -> None:
        """of_workers: the segments of each, without the first sends."""
        self._orders = {name: Order.of(whole) for name, whole in of_workers.items()}
        makes = {
            one.crossing: (name, index)
            for name, whole in of_workers.items()
            for index, segment in enumerate(whole)
            for one in segment
            if isinstance(one, Send)
        }
        self._needed = {
            (name, index): _makers(segment, makes)
            for name, whole in of_workers.items()
            for index, segment in enumerate(whole)
        }
        """Segments of other workers that a segment waits for."""
        self._answers = {name: answering_segment(whole) for name, whole in of_workers.items() if whole}

    def for_all(self, worker: str) -> tuple[int, ...] | None:
        """Return the segments after which a worker has waited for an answer of every other, through any of its arrivals, and
        only new weights are still to come; None if it has not even when it has done a step.

        Where samples enter and this is so, it needs no reports of the others: with K others under way here, no other
        worker has more.
        """
        order = self._orders[worker]
        wanted = {(name, last) for name, last in self._answers.items() if name != worker}
        reached = set[tuple[str, int]]()
        for count in range(len(order.pulls) + 1):
            ends = (*order.ends, *order.pulls[:count])
            self._reach(reached, worker, ends)
            if wanted <= reached:
                return ends
        return None

    def is_bounded(self, worker: str, segment: int) -> bool:
        """Tell whether a segment that goes forward in step t waits for an answer of every other worker in step t - K - 1.

        Then it needs no leave to begin: it is nowhere more than K steps ahead.
        """
        reached = set[tuple[str, int]]()
        self._reach(reached, worker, self._orders[worker].behind[segment])
        return {(name, last) for name, last in self._answers.items() if name != worker} <= reached

    def _reach(self, reached: set[tuple[str, int]], worker: str, of_worker: Iterable[int]) -> None:
        to_visit = [(worker, segment) for segment in of_worker]
        while to_visit:
            if (one := to_visit.pop()) not in reached:
                reached.add(one)
                name, segment = one
                to_visit += self._needed[one]
                to_visit += [(name, before) for before in self._orders[name].after[segment]]


def _makers(segment: Program, makes: Mapping[Crossing, tuple[str, int]]) -> list[tuple[str, int]]:
    return [makes[one.crossing] for one in segment if isinstance(one, Receive) and one.crossing in makes]


def _uses_tensors(operation: Operation) -> bool:
    if isinstance(operation, Send):
        return operation.crossing.cargo not in (Cargo.WEIGHTS, Cargo.NORMS, Cargo.COEFFICIENT, Cargo.SCALE)
    return isinstance(operation, Forward | Loss | Backward)
