"""Division of a traced forward into blocks: the possible places, and the chosen ones.

A forward can be divided where nothing but tensors is passed on, each with the batch in front. It is divided there unless that
would tear a whole block, and only in front of weights, so that a block's output comes from an activation or a normalisation if
there is a choice (paper 000, 4.5). Graph work only: nothing is run or built here.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import fx, nn

from shared.model.tracing import Call, TracedForward

_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_PRODUCTS = {
    *(F.linear, F.bilinear, F.embedding, F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    *(operator.matmul, torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.addmm, torch.baddbmm),
    *("matmul", "mm", "bmm", "addmm", "baddbmm"),
}
"""Functions and methods that make a parameter which they are given the weights of a layer, not a scale or an offset."""


@dataclass(frozen=True)
class Segment:
    """nodes[start:stop] of a trace: one block."""

    name: str
    start: int
    stop: int
    sources: tuple[fx.Node, ...]
    """The tensors that enter, in the order of the trace."""
    results: tuple[fx.Node, ...]
    """The tensors that leave. Those that have entered are passed on."""


def find_pieces(trace: TracedForward) -> list[Segment]:
    """Divide a trace into as many pieces as may be: a single one if it cannot be divided."""
    positions = positions_of(trace)
    first, end = len(trace.inputs), len(trace.nodes) - 1
    crossing = crossing_tensors(trace, positions)
    for call in whole_calls(trace, positions):
        for position in range(call.start + 1, call.stop):
            crossing.pop(position, None)
    inner_starts = set(_starts(trace, crossing, end))
    for begin, last in state_spans(trace, positions):
        inner_starts -= set(range(begin + 1, last + 1))
    crossing |= {first: trace.inputs, end: _outputs(trace)}
    pieces = list(pairwise([first, *sorted(inner_starts), end]))
    names = _distinct([_name(trace, start, stop) for start, stop in pieces])
    return [
        Segment(name, start, stop, crossing[start], crossing[stop])
        for name, (start, stop) in zip(names, pieces, strict=True)
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, where one that comes again, because its layer is called again, counts its calls."""
    counts = Counter[str]()
    found = []
    for name in names:
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return found


def _outputs(trace: TracedForward) -> tuple[fx.Node, ...]:
    """The tensors that the whole forward returns, in its order."""
    (returned,) = trace.nodes[-1].args
    every = returned if isinstance(returned, tuple | list) else (returned,)
    return tuple(each for each in every if isinstance(each, fx.Node))


def _starts(trace: TracedForward, crossing: dict[int, tuple[fx.Node, ...]], end: int) -> Iterator[int]:
    """The positions at which a block begins, one in front of each weights but the first.

    Where tensors pass by, it begins where the fewest new numbers are, so that nothing is joined to a tensor that has passed by
    before it has to be; of several such positions, and where nothing passes by, at the last.
    """
    places = sorted(place for place in crossing if place > len(trace.inputs))
    weighted = [
        index
        for index, (start, stop) in enumerate(pairwise([len(trace.inputs), *places, end]))
        if first_weights(trace, start, stop) is not None
    ]
    before: tuple[fx.Node, ...] = ()
    for last, index in pairwise(weighted):  # Operations before the first weights belong to the first block.
        choice = places[last:index]
        if any(len(crossing[place]) > 1 for place in choice):
            new = {
                place: sum(trace.shapes[value].numel() for value in crossing[place] if value not in before)
                for place in choice
            }
            start = min(reversed(choice), key=new.__getitem__)
        else:
            start = choice[-1]
        before = crossing[start]
        yield start


def positions_of(trace: TracedForward) -> dict[fx.Node, int]:
    """The place of each node in the trace. A boundary at position p lies before nodes[p]."""
    return {node: position for position, node in enumerate(trace.nodes)}


def crossing_tensors(trace: TracedForward, positions: dict[fx.Node, int]) -> dict[int, tuple[fx.Node, ...]]:
    """Return the tensors that cross each position where nothing else has to, and each has the batch in front.

    Values read from the module do not cross: they are there wherever they are used. Nor do sizes of the tensors that
    cross, and what follows from these.
    """
    found = {}
    for position, values in waiting(trace, positions):
        tensors = tuple(value for value in values if value in trace.shapes and value not in trace.made)
        if not tensors or not all(map(trace.carries_batch, tensors)):
            continue
        if all(value in tensors or trace.follows(value, tensors) for value in values):
            found[position] = tensors
    return found


def waiting(trace: TracedForward, positions: dict[fx.Node, int]) -> Iterator[tuple[int, list[fx.Node]]]:
    """Each position, with the values from before it that are used at it or after it."""
    last_use: dict[fx.Node, int] = {}
    for position, node in enumerate(trace.nodes[:-1]):
        yield position, list(last_use)
        if node.op != "get_attr" and node.users:
            last_use[node] = max(positions[user] for user in node.users)
        last_use = {value: last for value, last in last_use.items() if last > position}


def whole_calls(trace: TracedForward, positions: dict[fx.Node, int]) -> Iterator[Call]:
    """The calls that stay whole: all calls of a class that in some call passes a tensor by a part of itself.

    So a residual block without a skip stays as whole as its siblings, and a chain of blocks is opened. What holds a list of
    such blocks is opened, too, as a transformer that adds positions to tokens before its layers.
    """
    calls = list(_calls(_innermost(trace, positions)))[1:]
    passing = {
        type(call.module)
        for call in calls
        if not type(call.module).__module__.startswith("torch.nn.") and passing_tensors(call, trace, positions)
    }
    classes = passing - {type(call.module) for call in calls if _holds_list(call, passing)}
    return (call for call in calls if type(call.module) in classes)


def _holds_list(call: Call, classes: set[type]) -> bool:
    """Tell whether a call holds, at any depth, calls of two modules of these classes that are entries of one list."""
    lists: dict[str, set[nn.Module]] = {}
    for inner in list(_calls(call))[1:]:
        above, _, place = inner.path.rpartition(".")
        if place.isdecimal() and type(inner.module) in classes:
            lists.setdefault(above, set()).add(inner.module)
    return any(len(held) > 1 for held in lists.values())


def _innermost(trace: TracedForward, positions: dict[fx.Node, int]) -> Call:
    """The call in which all weights are and which holds no single other call with all of them: the module, or what it wraps."""
    call = trace.calls[trace.nodes[0]]
    while True:
        weighted = []
        for item in call.items:
            start, stop = (item.start, item.stop) if isinstance(item, Call) else (positions[item], positions[item] + 1)
            if first_weights(trace, start, stop) is not None:
                weighted.append(item)
        if len(weighted) != 1 or not isinstance(weighted[0], Call):
            return call
        call = weighted[0]


def _calls(call: Call) -> Iterator[Call]:
    yield call
    for item in call.items:
        if isinstance(item, Call):
            yield from _calls(item)


def passing_tensors(call: Call, trace: TracedForward, positions: dict[fx.Node, int]) -> tuple[fx.Node, ...]:
    """Return the tensors that wait for use inside the call where first several do, between two of its own operations or
    calls; none where never more than one does."""
    last_use = {
        positions[source]: position
        for position in range(call.start, call.stop)
        for source in trace.nodes[position].all_input_nodes
        if source.op != "get_attr" and source in trace.shapes and source not in trace.made and trace.is_learned(source)
    }
    starts = [item.start if isinstance(item, Call) else positions[item] for item in call.items]
    for start in starts:
        waiting_there = tuple(trace.nodes[value] for value, last in last_use.items() if value < start <= last)
        if start > call.start and len(waiting_there) > 1:
            return waiting_there
    return ()


def first_weights(trace: TracedForward, start: int, stop: int) -> tuple[fx.Node, str] | None:
    """The first node in nodes[start:stop] with weights of a layer, and their name: a module's, or a parameter's.

    Normalisations and activations may have parameters, but theirs are vectors that scale.
    """
    for node in trace.nodes[start:stop]:
        if node.op == "call_module":
            module = trace.root.get_submodule(str(node.target))
            if not isinstance(module, _NORMALISATIONS) and any(p.dim() > 1 for p in module.parameters()):
                return node, str(node.target)
        elif node.target in _PRODUCTS:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and isinstance(trace.attribute(source), nn.Parameter):
                    return node, str(source.target)
    return None


def state_spans(trace: TracedForward, positions: dict[fx.Node, int]) -> Iterator[tuple[int, int]]:
    """First and last position of use of each parameter and buffer, where no boundary may come between.

    One may where two operations use a parameter: the sum of their gradients is the same in any order.
    """
    uses: dict[int, list[int]] = {}
    several = set[int]()
    for position, node in enumerate(trace.nodes):
        if node.op == "call_module":
            module = trace.root.get_submodule(str(node.target))
            for tensor in (*module.parameters(), *module.buffers()):
                uses.setdefault(id(tensor), []).append(position)
                if not isinstance(tensor, nn.Parameter) or not type(module).__module__.startswith("torch.nn."):
                    several.add(id(tensor))  # a module of the user's may use it more than once
        elif node.op == "get_attr" and node.target not in trace.constants and node.target not in trace.fixed:
            value = trace.attribute(node)
            uses.setdefault(id(value), []).extend(positions[user] for user in node.users)
            if not isinstance(value, nn.Parameter):
                several.add(id(value))
    for value, found in uses.items():
        if len(found) > 2 or (len(found) == 2 and value in several):
            yield min(found), max(found)


def _name(trace: TracedForward, start: int, stop: int) -> str:
    """The outermost module that lies whole in nodes[start:stop] and holds their first weights; or these themselves."""
    found = first_weights(trace, start, stop)
    if found is None:
        return type(trace.root).__name__
    node, name = found
    call: Call | None = trace.calls[node]
    while call is not None and call.path and start <= call.start and call.stop <= stop:
        name, call = call.path, call.parent
    return name
