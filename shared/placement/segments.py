"""The segments of a program: arrivals, their computation in one go, and sends. Pure.

The runtime computes a segment at a time and goes to another step in between; the cost model and the simulator count the same.
"""

import itertools
from collections.abc import Mapping

from shared.placement.derived import Crossing
from shared.placement.programs import Backward, Forward, Loss, Operation, Program, Receive, Send, Take
from shared.placement.tiles import Cargo


def segments(whole: Program) -> tuple[Program, tuple[Program, ...]]:
    """Divide a program into its sends before any computation or arrival, and the segments of the rest."""
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
    """Return the number of its segments after which another step may come to a worker: it has then used its tensors,
    and others can continue.

    An update may still be under way, and its weights too: workers that need the weights wait for them.
    """
    answering = [number for number, one in enumerate(segments_of_worker, 1) if any(map(_uses_tensors, one))]
    return answering[-1] if answering else len(segments_of_worker)


class Waiting:
    """The segments of all workers that a worker has waited for when it has done a step."""

    def __init__(self, of_workers: Mapping[str, tuple[Program, ...]]) -> None:
        """of_workers: the segments of each, without the first sends."""
        self._of_workers = of_workers
        makes = {
            one.crossing: (name, index)
            for name, whole in of_workers.items()
            for index, segment in enumerate(whole)
            for one in segment
            if isinstance(one, Send)
        }
        self._needed = {name: [_latest(segment, makes) for segment in whole] for name, whole in of_workers.items()}
        """Last segment of each other worker that a segment waits for, by segment."""

    def is_for_all(self, worker: str) -> bool:
        """Tell whether a worker that has done a step has waited for an answer of every other, through any of its arrivals.

        Where samples enter and this is so, it needs no reports of the others: with K others under way here, no other
        worker has more.
        """
        reached = dict.fromkeys(self._of_workers, -1)
        """Last segment of each worker that has been waited for; all before it have been, too."""
        to_visit = [(worker, len(self._of_workers[worker]) - 1)]
        while to_visit:
            name, last = to_visit.pop()
            before, reached[name] = reached[name], max(reached[name], last)
            for index in range(before + 1, last + 1):
                to_visit += [one for one in self._needed[name][index].items() if one[1] > reached[one[0]]]
        return all(
            reached[name] >= answering_segments(whole) - 1
            for name, whole in self._of_workers.items()
            if whole and name != worker
        )


def _latest(segment: Program, makes: Mapping[Crossing, tuple[str, int]]) -> dict[str, int]:
    latest: dict[str, int] = {}
    for one in segment:
        if isinstance(one, Receive) and one.crossing in makes:
            name, index = makes[one.crossing]
            latest[name] = max(index, latest.get(name, index))
    return latest


def _uses_tensors(operation: Operation) -> bool:
    if isinstance(operation, Send):
        return operation.crossing.cargo is not Cargo.WEIGHTS
    return isinstance(operation, Forward | Loss | Backward)
