"""Pieces of a traced forward as modules that share the traced module's own submodules, parameters and buffers.

Knows nothing of where to divide. A piece moves to a device, trains and evaluates by itself, as a module should.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from torch import fx, nn
from torch.fx.node import map_aggregate

from shared.model.segmentation import Segment
from shared.model.tracing import Device, Mode, TracedForward

_Value = TypeVar("_Value")


def build_modules(trace: TracedForward, segments: Sequence[Segment]) -> list[nn.Module]:
    """The pieces of a trace as modules of one tensor in, one tensor out. The caller keeps the modes of `trace.root`."""
    held = {}
    for mode in (True, False):
        trace.root.train(mode)
        held[mode] = [module for module in trace.root.modules() if module.training != mode]
    readers = Counter(target for segment in segments for target in _fixed_buffers(trace, segment))
    copied = {target for target, pieces in readers.items() if pieces > 1}
    return [_Builder(trace, segment, copied).build(held) for segment in segments]


def _fixed_buffers(trace: TracedForward, segment: Segment) -> set[str]:
    """The fixed buffers that a piece reads, also in what it computes again."""
    found = set[str]()
    seen = set[fx.Node]()
    pending = [*trace.nodes[segment.start : segment.stop], segment.result]
    for node in pending:
        if node in seen or node is segment.source or trace.sizing.dimension(node, segment.source) is not None:
            continue
        seen.add(node)
        if node.target in trace.fixed:
            found.add(str(node.target))
        pending += node.all_input_nodes
    return found


class SegmentModule(fx.GraphModule):
    """One piece."""

    def __init__(
        self, attributes: Mapping[str, Any], graph: fx.Graph, held: Mapping[bool, Sequence[nn.Module]]
    ) -> None:
        super().__init__(dict(attributes), graph, "Segment")
        self._non_persistent_buffers_set.update(self._buffers)  # constants, which torch.fx registers as buffers
        lent = [module.owner for module in self.modules() if isinstance(module, Borrowed)]
        own = {*self.modules(), *lent}
        self._held = {mode: [module for module in modules if module in own] for mode, modules in held.items()}

    def train(self, mode: bool = True) -> "SegmentModule":
        """Switch as the whole module's `train` does, which may hold submodules (say frozen batch-norms) in one mode."""
        super().train(mode)
        for module in self._held[mode]:
            module.training = not mode
        return self


class Borrowed(nn.Module):
    """The parameters, buffers and mode that a piece uses of a module that it does not hold whole."""

    def __init__(self, owner: nn.Module, names: frozenset[str]) -> None:
        vars(self)["owner"] = owner  # past nn.Module, or it would become a child with all that it has
        super().__init__()
        vars(self)["_parameters"] = _Narrowed(owner._parameters, names)
        vars(self)["_buffers"] = _Narrowed(owner._buffers, names)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["owner"], name)

    @property
    def training(self) -> bool:
        return bool(vars(self)["owner"].training)

    @training.setter
    def training(self, mode: bool) -> None:
        vars(self)["owner"].training = mode


class _Narrowed(MutableMapping[str, _Value]):
    """Some entries of a dictionary that another object owns, live."""

    def __init__(self, whole: dict[str, _Value], names: frozenset[str]) -> None:
        self._whole = whole
        self._names = [name for name in whole if name in names]

    def __getitem__(self, name: str) -> _Value:
        if name not in self._names:
            raise KeyError(name)
        return self._whole[name]

    def __setitem__(self, name: str, value: _Value) -> None:
        if name not in self._names:
            raise KeyError(name)
        self._whole[name] = value

    def __delitem__(self, name: str) -> None:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Builder:
    """Copies the nodes of one piece into a graph of its own."""

    def __init__(self, trace: TracedForward, segment: Segment, copied: set[str]) -> None:
        """copied: the buffers of which the piece has a copy, because others read them too."""
        self._trace, self._segment, self._copied = trace, segment, copied
        self._graph = fx.Graph()
        self._input = self._graph.placeholder("input")
        self._copies = {segment.source: self._input}
        self._attributes: dict[str, Any] = {}
        self._lenders: dict[str, str] = {}
        self._borrowed: dict[str, set[str]] = {}
        self._reads: dict[tuple[str, str], fx.Node] = {}

    def build(self, held: Mapping[bool, Sequence[nn.Module]]) -> SegmentModule:
        for node in self._trace.nodes[self._segment.start : self._segment.stop]:
            if node.op == "get_attr":
                continue
            if node.op == "call_module":
                self._attributes[str(node.target)] = self._trace.root.get_submodule(str(node.target))
            self._add(node)
        self._graph.output(self._copy(self._segment.result))
        for path, names in self._borrowed.items():
            owner = self._trace.root.get_submodule(path)
            self._attributes[self._lenders[path]] = Borrowed(owner, frozenset(names))
        return SegmentModule(self._attributes, self._graph, held)

    def _add(self, node: fx.Node) -> None:
        self._copies[node] = self._graph.create_node(
            node.op,
            node.target,
            map_aggregate(node.args, self._copy),
            map_aggregate(node.kwargs, self._copy),
            node.name,
        )

    def _copy(self, argument: Any) -> Any:
        if isinstance(argument, Mode):
            return self._read(argument.path, "training")
        if isinstance(argument, Device):
            return self._graph.call_function(getattr, (self._input, "device"))
        if not isinstance(argument, fx.Node):
            return argument
        target = str(argument.target)
        if argument.op != "get_attr":
            if argument not in self._copies:  # it was asked for, or made, in an earlier piece
                place = self._trace.sizing.dimension(argument, self._segment.source)
                if place is None:
                    self._add(argument)
                else:
                    self._copies[argument] = self._graph.call_method("size", (self._input, place))
            return self._copies[argument]
        if target in self._trace.constants:
            self._attributes[target] = self._trace.constants[target]
            return self._graph.create_node("get_attr", target)
        if target in self._copied:
            name = target.replace(".", "_")
            self._attributes[name] = self._trace.attribute(argument).clone()
            return self._graph.create_node("get_attr", name)
        path, _, name = target.rpartition(".")
        return self._read(path, name)

    def _read(self, path: str, name: str) -> fx.Node:
        """A node that reads the attribute `name` of the submodule at `path` where that submodule keeps it."""
        if (path, name) not in self._reads:
            lender = self._lenders.setdefault(path, f"borrowed_{len(self._lenders)}")
            self._borrowed.setdefault(path, set()).add(name)
            owner = self._graph.create_node("get_attr", lender)
            self._reads[path, name] = self._graph.call_function(getattr, (owner, name))
        return self._reads[path, name]
