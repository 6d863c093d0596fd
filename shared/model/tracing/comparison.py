"""The comparison of the runs of one module: their operations must be the same, node by node, and equal sizes are constants.

Two sizes that are equal in all runs are one and the same, because the runs differ in the batch size, and in the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.node import map_aggregate

from shared.model.snapshot import same_bits
from shared.model.tracing.leaves import OpaqueError, definition_line
from shared.model.tracing.record import Call, Device, Record


class Mode:
    """Stands in a node's arguments for what follows from the `training` flag of the submodule at `path` ("" is the module
    itself): one value in train mode, and another in eval mode."""

    def __init__(self, path: str, trained: Any, evaluated: Any) -> None:
        self.path, self.trained, self.evaluated = path, trained, evaluated

    @property
    def is_flag(self) -> bool:
        """True if the values are those of the flag itself."""
        return self.trained is True and self.evaluated is False


_FOLLOWING = (bool, int, float, str, type(None))
"""Types of values that may follow the mode."""


def follow_mode(trained: Record, evaluated: Record) -> None:
    """Put a `Mode` in the arguments of the nodes traced in train mode wherever the same node has another value in eval mode.

    Raises OpaqueError for the module whose forward differs between the modes in anything else.
    """
    _compare(trained, evaluated, "in train mode", "in eval mode", modes=True)


def same_graph(evaluated: Record, other: Record, when: str) -> None:
    """Compare two runs in eval mode. Raises OpaqueError for the module whose forward does something else `when`."""
    _compare(evaluated, other, when, "for the example", modes=False)


def _compare(ours: Record, theirs: Record, when: str, otherwise: str, *, modes: bool) -> None:
    def differs(call: Call, item: Call | fx.Node | None) -> OpaqueError:
        where = ours.lines[item] if isinstance(item, fx.Node) else definition_line(call.module)
        return OpaqueError(call.module, where, f"forward() computes something else {when} than {otherwise}")

    pending = [(ours.root_call, theirs.root_call)]
    for our_call, their_call in pending:
        signatures = [
            [_signature(item, record) for item in call.items]
            for call, record in ((our_call, ours), (their_call, theirs))
        ]
        if signatures[0] != signatures[1]:
            place = next(
                (index for index, (one, other) in enumerate(zip(*signatures, strict=False)) if one != other), None
            )
            raise differs(our_call, our_call.items[place] if place is not None else None)
        pending += [
            (one, other)
            for one, other in zip(our_call.items, their_call.items, strict=True)
            if isinstance(one, Call) and isinstance(other, Call)
        ]
    pairs = dict(zip(ours.graph.nodes, theirs.graph.nodes, strict=True))
    for node, other in pairs.items():
        call = ours.calls[node]
        path = call.path if modes else None
        try:
            args, kwargs = _merge(node.args, other.args, pairs, path), _merge(node.kwargs, other.kwargs, pairs, path)
        except _DiffersError:
            raise differs(call, node) from None
        if modes:
            node.args, node.kwargs = args, kwargs
        if node.target in ours.constants:
            constants = ours.constants[str(node.target)], theirs.constants[str(other.target)]
            if not same_bits(*constants):
                reason = "forward() makes a tensor that changes from call to call"
                raise OpaqueError(call.module, ours.lines[node], reason)


class _DiffersError(Exception):
    """Two arguments differ in more than a value that may follow the mode."""


def _merge(ours: Any, theirs: Any, pairs: dict[fx.Node, fx.Node], path: str | None) -> Any:
    """path: of the module whose mode differing values may follow; None where they may follow none."""
    if isinstance(ours, _FOLLOWING) and isinstance(theirs, _FOLLOWING):
        if type(ours) is type(theirs) and repr(ours) == repr(theirs):
            return ours
        if path is not None:
            return Mode(path, ours, theirs)
    if type(ours) is not type(theirs):
        raise _DiffersError
    match ours:
        case fx.Node() if pairs[ours] is theirs:
            return ours
        case tuple() | list() if len(ours) == len(theirs):
            merged = [_merge(one, other, pairs, path) for one, other in zip(ours, theirs, strict=True)]
            return merged if isinstance(ours, list) else tuple(merged)
        case dict() if ours.keys() == theirs.keys():
            return {key: _merge(value, theirs[key], pairs, path) for key, value in ours.items()}
        case slice():
            ends = ((ours.start, theirs.start), (ours.stop, theirs.stop), (ours.step, theirs.step))
            return slice(*(_merge(one, other, pairs, path) for one, other in ends))
        case Mode() | Device():
            return ours
        case _ if repr(ours) == repr(theirs):
            return ours
    raise _DiffersError


def _signature(item: Call | fx.Node, record: Record) -> tuple[Any, ...]:
    """Describe an operation or a call, apart from its arguments and from the numbers that constants have."""
    if isinstance(item, Call):
        return ("call", item.path)
    if item.target in record.constants:
        return ("constant",)
    return (item.op, getattr(item.target, "__qualname__", item.target))


@dataclass(frozen=True)
class Sizing:
    """Numbers and shapes of nodes, run by run: of which tensor each size can be asked."""

    numbers: dict[fx.Node, tuple[int | float, ...]]
    shapes: dict[fx.Node, tuple[tuple[int, ...], ...]]
    """For each dimension of a tensor, its size in each run."""

    def dimension(self, number: fx.Node, tensor: fx.Node) -> int | None:
        """The dimension of a tensor that a number is the size of; None where there is none."""
        wanted = self.numbers.get(number)
        sizes = self.shapes.get(tensor, ())
        return sizes.index(wanted) if wanted is not None and wanted in sizes else None


def simplify(records: Sequence[Record], inputs: int) -> Sizing:
    """Simplify the first of several records of the same operations: sizes that never change become constants, and those that
    are sizes of inputs one each. Nodes that nothing needs any more are left out.

    inputs: how many nodes stand for inputs.
    """
    first = records[0]
    nodes = list(first.graph.nodes)
    aligned = list(zip(*(record.graph.nodes for record in records), strict=True))
    numbers = {
        same[0]: tuple(record.numbers[node] for record, node in zip(records, same, strict=True))
        for same in aligned
        if same[0] in first.numbers
    }
    shapes = {
        same[0]: tuple(zip(*(record.shapes[node] for record, node in zip(records, same, strict=True)), strict=True))
        for same in aligned
        if same[0] in first.shapes
    }
    entering = {size for node in nodes[:inputs] for size in shapes[node]}
    first_of: dict[tuple[int | float, ...], fx.Node] = {}
    stand_ins: dict[fx.Node, fx.Node | int | float] = {}
    for node, values in numbers.items():
        if len(set(values)) == 1:
            stand_ins[node] = values[0]
        elif values in entering and (known := first_of.setdefault(values, node)) is not node:
            stand_ins[node] = known
    for node in nodes:
        node.args = map_aggregate(node.args, lambda each: stand_ins.get(each, each))  # type: ignore[arg-type]
        node.kwargs = map_aggregate(node.kwargs, lambda each: stand_ins.get(each, each))  # type: ignore[arg-type]
    for node in reversed(nodes):
        if not node.users and (node in numbers or node in first.entries or node.op == "get_attr"):
            first.graph.erase_node(node)
    _renumber(first.root_call, nodes, set(first.graph.nodes))
    return Sizing(numbers, shapes)


def _renumber(root_call: Call, nodes: Sequence[fx.Node], kept: set[fx.Node]) -> None:
    """Have the places of calls count the nodes that are kept."""
    places = [0]
    for node in nodes:
        places.append(places[-1] + (node in kept))
    pending = [root_call]
    for call in pending:
        call.start, call.stop = places[call.start], places[call.stop]
        call.items = [item for item in call.items if isinstance(item, Call) or item in kept]
        pending += [item for item in call.items if isinstance(item, Call)]
