"""Values of a traced run and the nodes that give them, in both directions.

A tensor remembers its node itself, so that it is freed as early as without a trace. Parameters, buffers and other tensors of
the module are known by identity.
"""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from shared.model.tracing.leaves import caller_line
from shared.model.tracing.record import Call, Device, Record, TraceError, modes_of_torch
from shared.model.tracing.sizes import Size, size

_NODE = "_isthmus_node"
"""The attribute of a tensor that holds the node which gives it, and the tensor's version then."""
_PLAIN = (bool, complex, str, torch.dtype, torch.layout, torch.memory_format, type(None), type(Ellipsis))


class Nodes:
    """Writes the graph of one run."""

    def __init__(self, root: nn.Module) -> None:
        self.call = Call("", root)
        """The innermost call that runs now."""
        self.record = Record(self.call)
        self._targets: dict[int, tuple[str, Tensor]] = {}
        self._parameters = {name for name, _ in root.named_parameters()}
        self._fixed: list[tuple[str, Tensor, int]] = []
        for path, module in root.named_modules():
            for name, value in (*module._parameters.items(), *module._buffers.items(), *vars(module).items()):
                if isinstance(value, Tensor) and id(value) not in self._targets:
                    target = f"{path}.{name}" if path else name
                    self._targets[id(value)] = target, value
                    if name in module._non_persistent_buffers_set:
                        self.record.fixed.add(target)
                        self._fixed.append((target, value, value._version))
        self._reads: dict[str, fx.Node] = {}
        self._sizes: dict[tuple[fx.Node, int], Size] = {}

    def add(self, op: str, target: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> fx.Node:
        """Add an operation on values. Raises TraceError for arguments that a graph cannot hold."""
        node = self._add(op, target, self.argument(args), self.argument(kwargs or {}))
        if op != "call_module" and all(map(self._has_no_gradient, node.all_input_nodes)):
            self.record.without_gradient.add(node)
        self.check_modes(gradients=node not in self.record.without_gradient)
        return node

    def enter(self, node: fx.Node) -> None:
        """Note the call and the line that a node belongs to."""
        self.record.calls[node] = self.call
        self.record.lines[node] = caller_line()
        self.call.items.append(node)

    def check_modes(self, *, gradients: bool = True) -> None:
        """Raise TraceError where the modes of torch are not those in which the present call began.

        gradients: whether that of gradients matters.
        """
        if modes_of_torch()[0 if gradients else 1 :] != self.call.modes[0 if gradients else 1 :]:
            raise TraceError(
                "forward() switches gradients or autocast on or off, which a trace does not keep (to freeze layers, use "
                "requires_grad_(False))"
            )

    def argument(self, value: Any) -> Any:
        """The value as a node's argument: nodes in place of tensors and sizes. Raises TraceError for what cannot be one."""
        if isinstance(value, Size):
            return value.node
        if isinstance(value, Tensor):
            return self._node_of(value)
        if isinstance(value, torch.device):
            return Device()
        if isinstance(value, slice):
            return slice(*map(self.argument, (value.start, value.stop, value.step)))
        if type(value) in (tuple, list, torch.Size):
            held = [self.argument(each) for each in value]
            return held if isinstance(value, list) else tuple(held)
        if type(value) is dict:
            return {key: self.argument(each) for key, each in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):  # of numpy, say, which no graph can show
            return int(value) if isinstance(value, int) else float(value)
        if isinstance(value, _PLAIN):
            return value
        raise TraceError(f"an operation on tensors is given a {type(value).__name__}, which a trace does not keep")

    def is_traced(self, value: Any) -> bool:
        """Tell whether a value changes from run to run: it was computed, or is a parameter, a buffer or a size."""
        if not isinstance(value, Tensor):
            return isinstance(value, Size)
        target, _ = self._targets.get(id(value), (None, None))
        return self.computed(value) is not None or (target is not None and target not in self.record.constants)

    def computed(self, tensor: Tensor) -> fx.Node | None:
        """The node that gives a tensor; None where the module has it already, or it is a constant."""
        node, _ = vars(tensor).get(_NODE, (None, 0))
        return node if node is not None and node.graph is self.record.graph else None

    def is_known(self, tensor: Tensor) -> bool:
        """Tell whether the contents of a tensor are the same for every batch, apart from those of parameters."""
        if isinstance(tensor, nn.Parameter):
            return False
        node = self.computed(tensor)
        return node is None or node in self.record.made

    def check_sized(self, node: fx.Node) -> None:
        """Raise TraceError where the shape of a node's tensor may follow from contents."""
        if node in self.record.contents_sized:
            raise TraceError("forward() asks for a size that follows from the contents of a tensor")

    def size_of(self, node: fx.Node, place: int) -> Any:
        """The size of one dimension of a node's tensor. Raises TraceError as `check_sized` does."""
        self.check_sized(node)
        if (node, place) not in self._sizes:
            asked = self._add("call_method", "size", (node, place), {})
            self._sizes[node, place] = self.number(asked, self.record.shapes[node][place])
        return self._sizes[node, place]

    def number(self, node: fx.Node, value: int | float) -> Size:
        """The number that a node gives."""
        self.record.numbers[node] = value
        return size(value, node, self.record_number)

    def record_number(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Any:
        """Record arithmetic on sizes, unless it is that of an operation which is recorded as a whole."""
        if not torch._C._is_torch_function_mode_enabled():
            return value
        node = self.add("call_function", function, args)
        self.note_made(node)
        return self.number(node, value)

    def note_made(self, node: fx.Node) -> None:
        """Note that a node follows from numbers, constants and fixed buffers alone, where it does."""
        record = self.record
        if all(
            each in record.numbers
            or each in record.made
            or each.target in record.constants
            or each.target in record.fixed
            for each in node.all_input_nodes
        ):
            record.made.add(node)

    def end(self) -> None:
        """Take back of the buffers that were written to that they are fixed."""
        record = self.record
        written = {target for target, buffer, version in self._fixed if buffer._version != version}
        record.fixed -= written
        for node in record.graph.nodes:
            sources = [each for each in node.all_input_nodes if each not in record.numbers]
            if any(each.target in written or (each.op != "get_attr" and each not in record.made) for each in sources):
                record.made.discard(node)

    def _has_no_gradient(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            return str(node.target) not in self._parameters
        return node in self.record.without_gradient or node in self.record.numbers

    def mark(self, tensor: Tensor, node: fx.Node) -> None:
        """Have a tensor remember that `node` gives it."""
        if any(source in self.record.contents_sized for source in node.all_input_nodes):
            self.record.contents_sized.add(node)
        setattr(tensor, _NODE, (node, tensor._version))
        self.record.shapes[node] = tensor.size()

    def named(self, node: fx.Node, result: Any, unchanged: "Unchanged") -> Any:
        """Note that `node` gives the result, and return it. Raises TraceError for a result that holds no tensors.

        An input that is handed on as it is gets a second name, because only the training mode may make that so.
        """
        if isinstance(result, Tensor):
            if result in unchanged:
                with torch.no_grad():
                    result = torch.ops.aten.alias(result)
            if id(result) not in self._targets:
                self.mark(result, node)
            return result
        if isinstance(result, dict):
            found = copy.copy(result)  # of its own class, which may have its entries as attributes, too
            for key, value in result.items():
                found[key] = self._entry(node, key, value, unchanged)
            return found
        if type(result) in (tuple, list):
            return type(result)(self._entry(node, index, each, unchanged) for index, each in enumerate(result))
        if isinstance(result, tuple):  # one with names
            for index, each in enumerate(result):
                self._entry(node, index, each, Unchanged(()))
            return result
        raise TraceError(f"it returns a {type(result).__name__}, which is no tensor")

    def _entry(self, node: fx.Node, key: Any, value: Any, unchanged: "Unchanged") -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, Tensor | tuple | list | dict | int):
            raise TraceError(f"it returns a {type(value).__name__} among tensors")
        entry = self._add("call_function", operator.getitem, (node, key), {})
        self.record.entries.add(entry)
        if node in self.record.made:
            self.record.made.add(entry)
        return self.number(entry, value) if isinstance(value, int) else self.named(entry, value, unchanged)

    def _add(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self.record.graph.create_node(op, target, args, kwargs)
        self.enter(node)
        return node

    def _node_of(self, tensor: Tensor) -> fx.Node:
        node = self.computed(tensor)
        if node is not None:
            if vars(tensor)[_NODE][1] != tensor._version:  # written to by another name
                self.record.made.discard(node)
            return node
        if id(tensor) not in self._targets:
            target = f"_constant_{len(self.record.constants)}"
            self._targets[id(tensor)] = target, tensor
            self.record.constants[target] = tensor
        target, _ = self._targets[id(tensor)]
        if target not in self._reads:
            self._reads[target] = self._add("get_attr", target, (), {})
        return self._reads[target]


class Unchanged:
    """Tells which of some tensors have not been written to since."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._versions = [(tensor, tensor._version) for tensor in tensors]

    def __contains__(self, tensor: Tensor) -> bool:
        return any(tensor is each and tensor._version == version for each, version in self._versions)


def leaves_of(value: Any) -> Iterator[Any]:
    """All that a structure of arguments holds."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from leaves_of(each)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors that a structure of arguments holds."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]
