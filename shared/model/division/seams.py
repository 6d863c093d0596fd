"""Reasons why two layers of a traced model, one after the other, are in one block: the obstacles to a cut between them.

`segmentation.py` divides a trace where it can; this says of each place between two layers with weights why it cannot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, fx, nn

from shared.model.division.segmentation import (
    crossing_tensors,
    find_pieces,
    first_weights,
    passing_tensors,
    positions_of,
    state_spans,
    waiting,
    whole_calls,
)
from shared.model.tracing import TracedForward


@dataclass(frozen=True)
class Seam:
    """Two layers with weights, one after the other, that are in one block."""

    before: str
    """The name of the first layer, or of its parameter."""
    after: str
    reason: str
    """Obstacle to a cut between the two layers, in words."""


def find_seams(trace: TracedForward) -> list[Seam]:
    """Every two layers with weights that follow one another in one piece of a trace, in order."""
    positions = positions_of(trace)
    starts = {piece.start for piece in find_pieces(trace)}
    layers = [
        (place, found) for place in range(len(trace.inputs), len(trace.nodes) - 1) if (found := _weights(trace, place))
    ]
    obstacles = _Obstacles(trace, positions)
    seams = []
    for index, (place, name) in enumerate(layers):
        if index and not starts & set(range(layers[index - 1][0] + 1, place + 1)):
            seams.append(Seam(layers[index - 1][1], name, obstacles.between(layers[index - 1][0], place)))
        seams += _inside_a_leaf(trace, trace.nodes[place])
    return seams


class _Obstacles:
    """The obstacles to cuts in one trace."""

    def __init__(self, trace: TracedForward, positions: dict[fx.Node, int]) -> None:
        self._trace, self._positions = trace, positions
        self._waiting = dict(waiting(trace, positions))
        self._possible = crossing_tensors(trace, positions)
        self._whole = list(whole_calls(trace, positions))
        self._spans = list(state_spans(trace, positions))

    def between(self, before: int, after: int) -> str:
        """Explain why no cut lies in front of nodes[after] and behind nodes[before]."""
        places = range(before + 1, after + 1)
        possible = [place for place in places if place in self._possible]
        if not possible:
            return self._crossing(min(reversed(places), key=lambda place: len(self._passed(place))))
        place = possible[-1]
        for first, last in self._spans:
            if first < place <= last:
                return _shared_state(self._trace, first, last)
        call = next(call for call in self._whole if call.start < place < call.stop)
        together = f"both are in {call.path!r}, and every {type(call.module).__name__} stays whole, because"
        if len(self._passed(place)) > 1:
            return f"{self._crossing(place)}; {together} a tensor passes by a part of one"
        return f"{together} in one {self._passing(type(call.module))} pass together"

    def _passing(self, kind: type[nn.Module]) -> str:
        """Name the tensors that pass together in the first call of a class that stays whole for them."""
        calls = (call for call in self._whole if type(call.module) is kind)
        passing = next(found for call in calls if (found := passing_tensors(call, self._trace, self._positions)))
        return " and ".join(_from(self._trace, value) for value in passing)

    def _passed(self, place: int) -> list[fx.Node]:
        values = self._waiting[place]
        tensors = [value for value in values if value in self._trace.shapes and value not in self._trace.made]
        return [value for value in values if value in tensors or not self._trace.follows(value, tensors)]

    def _crossing(self, place: int) -> str:
        trace, passed = self._trace, self._passed(place)
        what = " and ".join(sorted({_from(trace, value) for value in passed})) or "nothing"
        said = f"in front of {_described(trace, trace.nodes[place])} there {'pass' if len(passed) > 1 else 'passes'} {what}"
        if len(passed) != 1:
            return said
        return said + (
            ", whose first dimension is not the batch" if passed[0] in trace.shapes else ", which is no tensor"
        )


def _weights(trace: TracedForward, place: int) -> str | None:
    found = first_weights(trace, place, place + 1)
    return None if found is None else found[1]


def _inside_a_leaf(trace: TracedForward, node: fx.Node) -> Iterator[Seam]:
    """The layers of a module that was not traced through but is run as it is."""
    if node.op != "call_module":
        return
    path = str(node.target)
    module = trace.root.get_submodule(path)
    weighted = [
        f"{path}.{name}" if name else path
        for name, part in module.named_modules()
        if any(parameter.dim() > 1 for parameter in part.parameters(recurse=False))
    ]
    kind = type(module).__name__
    why = next((reason for reason in trace.leaf_reasons if reason.startswith(f"{kind} at ")), None)
    reason = f"{path!r} is a {kind}, which runs as it is"
    reason += f": {why}" if why else " as layers of torch.nn do; to have it cut, call its layers one after the other"
    for before, after in pairwise(weighted):
        yield Seam(before, after, reason)


def _shared_state(trace: TracedForward, first: int, last: int) -> str:
    """The parameter or buffer that nodes[first] and nodes[last] both use, by all its names."""
    held = [_state_of(trace, trace.nodes[place]) for place in (first, last)]
    common = held[0] & held[1]
    names = [name for name, value in _named_state(trace) if id(value) in common]
    ends = " and ".join(_described(trace, trace.nodes[place]) for place in (first, last))
    shared = " and ".join(map(repr, names)) or "a parameter"
    return f"{shared} is one tensor, which {ends} share, so what lies between them is one block"


def _state_of(trace: TracedForward, node: fx.Node) -> set[int]:
    """Ids of the parameters and buffers that a node uses."""
    if node.op == "call_module":
        module: nn.Module = trace.root.get_submodule(str(node.target))
        return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    read = [source for source in node.all_input_nodes if source.op == "get_attr"]
    return {id(trace.attribute(source)) for source in read if source.target not in trace.constants}


def _named_state(trace: TracedForward) -> list[tuple[str, Tensor]]:
    named_parameters = trace.root.named_parameters(remove_duplicate=False)
    return [*named_parameters, *trace.root.named_buffers(remove_duplicate=False)]


def _described(trace: TracedForward, node: fx.Node) -> str:
    """A value by where it comes from: the module that makes it, or an operation and the module that does it."""
    if node.op == "placeholder":
        return "the input" if len(trace.inputs) == 1 else f"input {trace.input_name(node)}"
    if node.op == "call_module":
        return repr(str(node.target))
    inside = trace.calls[node].path
    if node not in trace.shapes and node.all_input_nodes:  # a size, say, of a tensor
        return f"{node.name} of {_described(trace, node.all_input_nodes[0])}"
    return f"{node.name} of {inside!r}" if inside else repr(node.name)


def _from(trace: TracedForward, node: fx.Node) -> str:
    """A value that passes, with the line that it comes from."""
    described = _described(trace, node)
    return described if node.op == "placeholder" else f"{described} ({trace.lines[node]})"
