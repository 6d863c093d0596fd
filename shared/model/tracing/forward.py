"""A module's forward as a graph: which operation follows which, inside which submodule's call, and with which sizes.

A submodule, or a function, that cannot be traced is run as it is. Knows nothing of blocks. The forward runs in both modes, on
another batch, and on shorter samples where it takes them. Where the two modes differ in a flag, the flag is marked to be read
when the graph runs. Sizes that are the same in all runs are constants; the others stay questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from shared.errors import ModelError
from shared.model.examples import other_batch, shorter
from shared.model.features import Features
from shared.model.random_state import random_state
from shared.model.tracing.comparison import Sizing, follow_mode, same_graph, simplify
from shared.model.tracing.leaves import Leaves, OpaqueError
from shared.model.tracing.record import Call, Record
from shared.model.tracing.recorder import Recorder

_Run = Callable[[Features, bool], Record]
"""Records a run on inputs, in train mode or not."""


@dataclass
class TracedForward:
    """The operations of a module on its inputs, in order."""

    root: nn.Module
    nodes: list[fx.Node]
    """The inputs first, the output last. A `Mode` stands for each flag that follows train() and eval(), a `Device` for each
    device."""
    calls: dict[fx.Node, Call]
    """The innermost call that each node belongs to."""
    shapes: dict[fx.Node, torch.Size]
    """Shape of each node whose value is a tensor, on the example."""
    sizing: Sizing
    made: set[fx.Node]
    """Nodes whose values follow from sizes and constants alone, so that they can be computed wherever they are needed."""
    parameterless: set[fx.Node]
    """Nodes whose values follow from inputs, constants and buffers alone."""
    fixed: set[str]
    """Targets of the nodes that read a buffer which nothing writes to and no state dict holds."""
    constants: dict[str, Tensor]
    """Tensors that the forward made without looking at its input, by the target of the node that reads them."""
    lines: dict[fx.Node, str]
    """The user's line that each node comes from, as file:line."""
    leaf_reasons: list[str]
    """Reasons why submodules could not be traced, each with its place, one sentence for each kind."""
    inputs: tuple[fx.Node, ...]
    names: tuple[str, ...]
    """Names of the inputs, where they have any."""
    measured: frozenset[fx.Node]
    """The inputs of floats."""
    takes_shorter: bool
    """True if the graph holds for shorter samples too."""

    def attribute(self, node: fx.Node) -> Any:
        """The live value that a `get_attr` node reads."""
        target = str(node.target)
        if target in self.constants:
            return self.constants[target]
        path, _, name = target.rpartition(".")
        return getattr(self.root.get_submodule(path), name)

    def carries_batch(self, tensor: fx.Node) -> bool:
        """Tell whether the first dimension of a node's tensor is that of the inputs, whatever the batch size."""
        return self.sizing.shapes[tensor][:1] == self.sizing.shapes[self.inputs[0]][:1]

    def input_name(self, node: fx.Node) -> str:
        """Name an input by its name, or by its place."""
        place = self.inputs.index(node)
        return repr(self.names[place]) if self.names else str(place)

    def is_learned(self, value: fx.Node) -> bool:
        """Tell whether parameters had a part in a value, or it is a measured input: not so with masks and positions."""
        return value not in self.parameterless or value in self.measured

    def follows(self, value: fx.Node, tensors: Sequence[fx.Node]) -> bool:
        """Tell whether a value can be computed of the sizes of tensors, so that it need not be passed on beside them."""
        if any(self.sizing.dimension(value, tensor) is not None for tensor in tensors):
            return True
        return value in self.made and all(
            self.follows(source, tensors) for source in value.all_input_nodes if source.op != "get_attr"
        )


def trace(root: nn.Module, example: Features, names: tuple[str, ...] = ()) -> TracedForward:
    """Trace `root` on an example of its inputs, which it takes by these names, or by their places.

    The caller keeps buffers and modes. Raises ModelError, naming file and line, when the forward of `root` itself cannot be
    traced.
    """
    leaves = Leaves()
    while True:
        try:
            # Random state lets one thread trace at a time; the caller may have switched gradients off.
            with random_state("trace"), torch.enable_grad():
                return _trace(root, leaves, partial(_run, root, leaves, names), example, names)
        except OpaqueError as opaque:
            if not leaves.add(opaque, root):
                name = type(root).__name__
                raise ModelError(
                    f"{name} cannot be traced at {opaque.where}: {opaque.reason}; change that line, or give {name} a "
                    "method blocks() that returns its blocks in order"
                ) from opaque.__cause__


def _trace(root: nn.Module, leaves: Leaves, run: _Run, example: Features, names: tuple[str, ...]) -> TracedForward:
    trained, evaluated = run(example, True), run(example, False)
    follow_mode(trained, evaluated)
    records = [trained, run(other_batch(example), False)]
    same_graph(evaluated, records[1], "for another batch")
    short = _run_shorter(run, example, evaluated)
    if short is not None:
        records.append(short)
    sizing = simplify(records, len(example))
    inputs = tuple(trained.graph.nodes)[: len(example)]
    return TracedForward(
        root=root,
        nodes=list(trained.graph.nodes),
        calls=trained.calls,
        shapes=trained.shapes,
        sizing=sizing,
        made=trained.made,
        parameterless=trained.without_gradient,
        fixed=trained.fixed - _used_by_submodules(root, trained),
        constants=trained.constants,
        lines=trained.lines,
        leaf_reasons=leaves.reasons,
        inputs=inputs,
        names=names,
        measured=frozenset(node for node, tensor in zip(inputs, example, strict=True) if tensor.is_floating_point()),
        takes_shorter=short is not None,
    )


def _run(root: nn.Module, leaves: Leaves, names: tuple[str, ...], example: Features, training: bool) -> Record:
    root.train(training)
    return Recorder(root, leaves).record(example, names)


def _used_by_submodules(root: nn.Module, record: Record) -> set[str]:
    """The buffers of submodules that are run as they are: these read them themselves."""
    leaves = [str(node.target) for node in record.graph.nodes if node.op == "call_module"]
    return {f"{path}.{name}" for path in leaves for name, _ in root.get_submodule(path).named_buffers()}


def _run_shorter(run: _Run, example: Features, evaluated: Record) -> Record | None:
    """The run on shorter samples; None where these are not taken, or the operations are others then."""
    short = shorter(example)
    if short is None:
        return None
    try:
        record = run(short, False)
        same_graph(evaluated, record, "for another length")
    except OpaqueError:
        return None
    return record
