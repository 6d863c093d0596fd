"""A module's forward as a graph, by torch.fx: which operation follows which, and inside which submodule's call.

A submodule that cannot be traced becomes a leaf. Knows nothing of blocks. torch.fx writes the present mode (train or
eval) into its record; so each module is traced in both, and where the two graphs differ in a flag, the flag is marked
to be read when the graph runs.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from shared.errors import ModelError
from shared.model.random_state import random_state
from shared.model.snapshot import same_bits
from shared.model.tracer import (
    Call,
    Leaves,
    OpaqueError,
    Tracer,
    definition_line,
    tensor_shapes,
    trace_in_mode,
)


@dataclass(frozen=True)
class Mode:
    """Stands in a node's arguments for the `training` flag of the submodule at `path` ("" is the module itself)."""

    path: str


@dataclass
class TracedForward:
    """The operations of a module on its one input, in order."""

    root: nn.Module
    nodes: list[fx.Node]
    """The input first, the output last."""
    arguments: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]]
    """Arguments of each node, with a `Mode` in place of each flag that follows train() and eval()."""
    calls: dict[fx.Node, Call]
    """The innermost call that each node belongs to."""
    shapes: dict[fx.Node, torch.Size]
    """Shape of each node whose value is a tensor, on the example."""
    constants: dict[str, Tensor]
    """Tensors that the forward made without looking at its input, by the target of the node that reads them."""
    lines: dict[fx.Node, str]
    """The user's line that each node comes from, as file:line."""
    leaf_reasons: list[str]
    """Reasons why submodules could not be traced, each with its place, one sentence for each kind."""

    def attribute(self, node: fx.Node) -> Any:
        """The live value that a `get_attr` node reads."""
        target = str(node.target)
        if target in self.constants:
            return self.constants[target]
        path, _, name = target.rpartition(".")
        return getattr(self.root.get_submodule(path), name)

    def carries_batch(self, node: fx.Node) -> bool:
        """Tell whether the first dimension of a node's value is, on the example, that of the input."""
        return self.shapes[node][:1] == self.shapes[self.nodes[0]][:1]

    def is_batch_size(self, node: fx.Node) -> bool:
        """Tell whether a node asks a tensor for its batch size: every tensor that carries the batch can be asked instead."""
        match (node.op, node.target, node.args):
            case ("call_method", "size", (fx.Node() as tensor, 0)):
                pass
            case ("call_function", operator.getitem, (fx.Node(args=(fx.Node() as tensor, *_)) as size, 0)):
                if (size.target, *size.args[1:]) not in (("size",), (getattr, "shape")):
                    return False
            case _:
                return False
        return tensor in self.shapes and self.carries_batch(tensor)


def trace(root: nn.Module, example: Tensor) -> TracedForward:
    """Trace `root`, which takes one tensor; `example` tells tensors from other values.

    The caller keeps buffers and modes. Raises ModelError, naming file and line, when the forward of `root` itself cannot be
    traced.
    """
    leaves = Leaves()
    while True:
        try:
            with random_state("trace"):  # which also lets one thread trace at a time
                trained = trace_in_mode(root, leaves, training=True)
                evaluated = trace_in_mode(root, leaves, training=False)
                arguments = _follow_mode(trained, evaluated)
                root.eval()
                shapes = tensor_shapes(evaluated, example)
            nodes = list(trained.graph.nodes)
            return TracedForward(
                root=root,
                nodes=nodes,
                arguments=arguments,
                calls=trained.calls,
                shapes={node: shape for node, shape in zip(nodes, shapes, strict=True) if shape is not None},
                constants=trained.constants,
                lines=trained.lines,
                leaf_reasons=leaves.reasons,
            )
        except OpaqueError as opaque:
            if opaque.module is root:
                name = type(root).__name__
                raise ModelError(
                    f"{name} cannot be traced at {opaque.where}: {opaque.reason}; change that line, or give {name} a "
                    "method blocks() that returns its blocks in order"
                ) from opaque.__cause__
            leaves.add(opaque)


def _follow_mode(trained: Tracer, evaluated: Tracer) -> dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of the nodes traced in train mode, with a `Mode` wherever the same node has False in eval mode.

    Raises OpaqueError for the module whose forward differs between the modes in anything else.
    """
    pending = [(trained.root_call, evaluated.root_call)]
    for ours, theirs in pending:
        if [_signature(item, trained) for item in ours.items] != [_signature(item, evaluated) for item in theirs.items]:
            raise _mode_dependent(trained, ours)
        pending += [
            (one, other)
            for one, other in zip(ours.items, theirs.items, strict=True)
            if isinstance(one, Call) and isinstance(other, Call)
        ]
    pairs = dict(zip(trained.graph.nodes, evaluated.graph.nodes, strict=True))
    merged = {}
    for ours_node, theirs_node in pairs.items():
        call = trained.calls[ours_node]
        try:
            merged[ours_node] = (
                _merge(ours_node.args, theirs_node.args, pairs, Mode(call.path)),
                _merge(ours_node.kwargs, theirs_node.kwargs, pairs, Mode(call.path)),
            )
        except _DiffersError:
            raise _mode_dependent(trained, call, ours_node) from None
        if ours_node.target in trained.constants:
            constants = trained.constants[str(ours_node.target)], evaluated.constants[str(theirs_node.target)]
            if not same_bits(*constants):
                reason = "forward() makes a tensor that changes from call to call"
                raise OpaqueError(call.module, trained.lines[ours_node], reason)
    return merged


class _DiffersError(Exception):
    """Two arguments differ in more than a flag that follows the mode."""


def _merge(trained: Any, evaluated: Any, pairs: dict[fx.Node, fx.Node], mode: Mode) -> Any:
    if trained is True and evaluated is False:
        return mode
    if type(trained) is not type(evaluated):
        raise _DiffersError
    match trained:
        case fx.Node() if pairs[trained] is evaluated:
            return trained
        case tuple() | list() if len(trained) == len(evaluated):
            merged = [_merge(one, other, pairs, mode) for one, other in zip(trained, evaluated, strict=True)]
            return merged if isinstance(trained, list) else tuple(merged)
        case dict() if trained.keys() == evaluated.keys():
            return {key: _merge(value, evaluated[key], pairs, mode) for key, value in trained.items()}
        case slice():
            ends = ((trained.start, evaluated.start), (trained.stop, evaluated.stop), (trained.step, evaluated.step))
            return slice(*(_merge(one, other, pairs, mode) for one, other in ends))
        case _ if repr(trained) == repr(evaluated):
            return trained
    raise _DiffersError


def _signature(item: Call | fx.Node, tracer: Tracer) -> tuple[Any, ...]:
    """Describe an operation or a call, apart from its arguments and from the numbers that torch.fx gives to constants."""
    if isinstance(item, Call):
        return ("call", item.path)
    return ("constant",) if item.target in tracer.constants else (item.op, item.target)


def _mode_dependent(tracer: Tracer, call: Call, node: fx.Node | None = None) -> OpaqueError:
    where = tracer.lines[node] if node else definition_line(call.module)
    return OpaqueError(call.module, where, "forward() computes something else in train mode than in eval mode")
