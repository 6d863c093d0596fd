"""Pieces of a traced forward as modules that share the traced module's own submodules, parameters and buffers.

Knows nothing of where to divide. A piece moves to a device, trains and evaluates by itself, as a module should.
"""

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from shared.model.division.segmentation import Segment
from shared.model.features import Slots, call_module
from shared.model.tracing import Device, Mode, TracedForward
from shared.model.values.wiring import Made, Wiring

_Value = TypeVar("_Value")


def build_modules(trace: TracedForward, segments: Sequence[Segment]) -> list[nn.Module]:
    """The pieces of a trace as modules that take and return features. The caller keeps the modes of `trace.root`."""
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
    pending = [*trace.nodes[segment.start : segment.stop], *segment.results]
    for node in pending:
        if node in seen or node in segment.sources or _size_of(trace, node, segment.sources) is not None:
            continue
        seen.add(node)
        if node.target in trace.fixed:
            found.add(str(node.target))
        pending += node.all_input_nodes
    return found


def _size_of(trace: TracedForward, number: fx.Node, tensors: Iterable[fx.Node]) -> tuple[fx.Node, int] | None:
    """The first of these tensors that a number is a size of, and the dimension; None where it is a size of none."""
    for tensor in tensors:
        if (place := trace.sizing.dimension(number, tensor)) is not None:
            return tensor, place
    return None


class SegmentModule(fx.GraphModule):
    """One piece."""

    wiring: Wiring

    def __init__(
        self,
        attributes: Mapping[str, Any],
        graph: fx.Graph,
        held: Mapping[bool, Sequence[nn.Module]],
        wiring: Wiring,
    ) -> None:
        super().__init__(dict(attributes), graph, "Segment")
        self.wiring = wiring
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


class Joined(nn.Sequential):
    """Pieces, or blocks that a model declares, one after another as one."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__(*blocks)
        pieces = [block.wiring for block in blocks if isinstance(block, SegmentModule)]
        self.wiring = functools.reduce(Wiring.then, pieces) if len(pieces) == len(blocks) else None
        """None where the blocks do not know it."""

    def forward(self, *features: Tensor | None) -> Slots:
        """Return what the last returns, each given what the one before it returns."""
        outputs: Slots = features
        for block in self:
            outputs = call_module(block, outputs)
        return outputs


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
        self._inputs = [self._graph.placeholder(f"input_{slot}") for slot in range(len(segment.sources))]
        self._copies = dict(zip(segment.sources, self._inputs, strict=True))
        inside = set(trace.nodes[segment.start : segment.stop])
        self._sized = sorted(segment.sources, key=lambda source: inside.isdisjoint(source.users))
        """The tensors of which sizes are asked, those first that are there in any case because operations read them."""
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
        results = [self._copy(result) for result in self._segment.results]
        self._graph.output(results[0] if len(results) == 1 else tuple(results))
        for path, names in self._borrowed.items():
            owner = self._trace.root.get_submodule(path)
            self._attributes[self._lenders[path]] = Borrowed(owner, frozenset(names))
        return SegmentModule(self._attributes, self._graph, held, self._wiring())

    def _wiring(self) -> Wiring:
        sources = self._segment.sources
        reads = (slot for slot, node in enumerate(self._inputs) if any(user.op != "output" for user in node.users))
        outputs = (
            sources.index(result) if result in sources else self._making(result) for result in self._segment.results
        )
        return Wiring(frozenset(reads), tuple(outputs))

    def _making(self, result: fx.Node) -> Made:
        trace, sources = self._trace, self._segment.sources
        parameters, slots = set[str](), set[int]()
        pending, seen = [result], {result}
        for node in pending:
            if node in sources:
                slots.add(sources.index(node))
                continue
            if node in trace.made or node in trace.sizing.numbers:
                continue
            target = str(node.target)
            if node.op == "call_module":
                parameters |= {f"{target}.{name}" for name, _ in trace.root.get_submodule(target).named_parameters()}
            elif node.op == "get_attr" and isinstance(trace.attribute(node), nn.Parameter):
                parameters.add(target)
            new = [each for each in node.all_input_nodes if each not in seen]
            pending += new
            seen.update(new)
        return Made(frozenset(parameters), frozenset(slots))

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
            training = self._read(argument.path, "training")
            if argument.is_flag:
                return training
            return self._graph.call_function(operator.getitem, ((argument.evaluated, argument.trained), training))
        if isinstance(argument, Device):
            return self._graph.call_function(getattr, (self._copies[self._sized[0]], "device"))
        if not isinstance(argument, fx.Node):
            return argument
        target = str(argument.target)
        if argument.op != "get_attr":
            if argument not in self._copies:  # it was asked for, or made, in an earlier piece
                size = _size_of(self._trace, argument, self._sized)
                if size is None:
                    self._add(argument)
                else:
                    self._copies[argument] = self._graph.call_method("size", (self._copies[size[0]], size[1]))
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
