"""The result of one traced run."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn


class TraceError(Exception):
    """The forward does something that a trace does not keep."""


class ContentsError(TraceError):
    """The forward asks for the contents of a tensor, which differ from batch to batch."""


class Device:
    """Stands in a node's arguments for the device of the tensors that are computed on."""


def modes_of_torch() -> tuple[bool, ...]:
    """The modes that change what operations compute, and that no graph holds: gradients, and autocast on either device."""
    return (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"))


@dataclass(eq=False)
class Call:
    """One call of a module that was traced through: nodes[start:stop], partly its own and partly of calls inside it."""

    path: str
    module: nn.Module
    parent: "Call | None" = None
    start: int = 0
    stop: int = 0
    items: list["Call | fx.Node"] = field(default_factory=list)
    modes: tuple[bool, ...] = field(default_factory=lambda: modes_of_torch())
    """Modes of torch in which the call begins."""


@dataclass(eq=False)
class Record:
    """The operations of one run. The values themselves are not kept."""

    root_call: Call
    graph: fx.Graph = field(default_factory=fx.Graph)
    calls: dict[fx.Node, Call] = field(default_factory=dict)
    """The innermost call that each node belongs to."""
    lines: dict[fx.Node, str] = field(default_factory=dict)
    """The user's line that each node comes from, as file:line."""
    shapes: dict[fx.Node, torch.Size] = field(default_factory=dict)
    """Shapes of the tensors."""
    numbers: dict[fx.Node, int | float] = field(default_factory=dict)
    """Values of the numbers: sizes, and what was computed from them."""
    entries: set[fx.Node] = field(default_factory=set)
    """Nodes that take one value out of several."""
    made: set[fx.Node] = field(default_factory=set)
    """Nodes whose values follow from numbers, constants and fixed buffers alone, without chance."""
    fixed: set[str] = field(default_factory=set)
    """Buffers that no state dict holds and the forward does not write to, by their targets: as good as constants."""
    without_gradient: set[fx.Node] = field(default_factory=set)
    """Nodes whose values follow from the input, constants and buffers alone, so that no gradient comes from there."""
    contents_sized: set[fx.Node] = field(default_factory=set)
    """Nodes whose shapes may follow from contents, because something in front of them selects by contents."""
    constants: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that the forward has without looking at its input, by the target of the node that reads them."""
