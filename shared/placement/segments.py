"""The segments of a program: what a worker does in one go, from what has to have come to what is sent then. Pure.

The runtime computes a segment at a time and goes to another step in between; the cost model and the simulator count the same.
"""

import itertools

from shared.placement.programs import Operation, Program, Receive, Send, Take


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
