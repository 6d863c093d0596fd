"""Sizes of one module's values in several runs: which are constants, and of which tensor each can be asked.

Two sizes that are equal in all runs are one and the same, because the runs differ in the batch size, and in the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx
from torch.fx.node import map_aggregate

from shared.model.tracing.record import Call, Record


@dataclass(frozen=True)
class Sizing:
    """Numbers and shapes of nodes, run by run."""

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
