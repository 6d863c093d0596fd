"""The segments of a program: what a worker does in one go, from what has to have come to what is sent then. Pure.

The runtime computes a segment at a time and goes to another step in between; the cost model and the simulator count the same.
"""

import itertools

from shared.placement.facts import ModelFacts
from shared.placement.programs import Backward, Forward, Loss, Operation, Program, Receive, Send, Take, program
from shared.placement.tiles import Cargo, Placement


def segments(whole: Program) -> tuple[Program, tuple[Program, ...]]:
    """What is sent before anything is computed or has come, and the segments of the rest."""
    sent_first = tuple(itertools.takewhile(lambda one: isinstance(one, Take | Send), whole))
    rest: list[list[Operation]] = []
    last: Operation | None = None
    for operation in whole[len(sent_first) :]:
        waits = isinstance(operation, Receive) and not isinstance(last, Receive)
        if last is None or waits or (isinstance(last, Send) and not isinstance(operation, Send)):
            rest.append([])
        rest[-1].append(operation)
        last = operation
    return sent_first, tuple(tuple(segment) for segment in rest)


def answering_segments(segments_of_worker: tuple[Program, ...]) -> int:
    """After how many of its segments another step may come to a worker: it has used its tensors then, and others can go on.

    An update may still be under way, and its weights too: those who need them wait for these.
    """
    answering = [number for number, one in enumerate(segments_of_worker, 1) if any(map(_uses_tensors, one))]
    return answering[-1] if answering else len(segments_of_worker)


def waits_for_all(placement: Placement, model: ModelFacts, worker: str, *, training: bool = True) -> bool:
    """Whether a worker that has done a step has waited for every other to answer it, through whatever it received.

    Where samples enter and this is so, nobody has to tell it how far the others are: with K others under way here, no more than
    that are anywhere.
    """
    of_workers = {name: segments(program(placement, model, name, training=training))[1] for name in placement.workers}
    makes = {
        one.crossing: (name, index)
        for name, whole in of_workers.items()
        for index, segment in enumerate(whole)
        for one in segment
        if isinstance(one, Send)
    }
    reached: set[tuple[str, int]] = set()
    to_visit = [(worker, len(of_workers[worker]) - 1)]
    while to_visit:
        name, index = to_visit.pop()
        if index < 0 or (name, index) in reached:
            continue
        reached.add((name, index))
        needed = [one.crossing for one in of_workers[name][index] if isinstance(one, Receive)]
        to_visit += [(name, index - 1), *(makes[crossing] for crossing in needed if crossing in makes)]
    return all(
        (name, answering_segments(whole) - 1) in reached
        for name, whole in of_workers.items()
        if whole and name != worker
    )


def _uses_tensors(operation: Operation) -> bool:
    if isinstance(operation, Send):
        return operation.crossing.cargo is not Cargo.WEIGHTS
    return isinstance(operation, Forward | Loss | Backward)
