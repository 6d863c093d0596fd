"""One run of a module on an example that records what it does: operations, calls of submodules, source lines, sizes.

The forward runs on tensors with values, so shapes, types and arguments can be asked. Sizes are recorded with what follows from
them, because another batch has others. The contents of a tensor cannot be asked. What is replaced for the whole process while
it runs, other threads meet as it was; one thread at a time may record.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from shared import foreign
from shared.model.features import Features
from shared.model.random_state import generator_states
from shared.model.snapshot import unchanged
from shared.model.tracing.leaves import Leaves, OpaqueError, definition_line, is_torchs, opaque
from shared.model.tracing.nodes import Nodes, Unchanged, leaves_of, tensors_of
from shared.model.tracing.record import Call, ContentsError, Record, TraceError

_SIZES = frozenset(("shape", "size", "__len__", "numel", "nelement"))
_FACTS = _SIZES | {
    *("dim", "ndim", "dtype", "type", "device", "get_device", "layout", "stride", "storage_offset"),
    *("element_size", "itemsize", "nbytes", "result_type", "can_cast", "is_same_size", "is_tensor"),
    *("is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_cuda", "is_cpu", "is_meta"),
    *("is_sparse", "is_quantized", "is_nested", "is_inference", "is_conj", "is_neg"),
    *("__format__", "__repr__", "__hash__"),
}
"""Questions about tensors that can be answered without their contents."""
_SELECTIONS = frozenset(
    ("nonzero", "masked_select", "argwhere", "unique", "unique_consecutive", "bincount", "repeat_interleave")
)
"""Functions of which the shape of the result may follow from contents."""
_ABOUT_GRADIENTS = frozenset(("requires_grad", "grad", "grad_fn", "is_leaf", "retains_grad", "register_hook"))


class Recorder(TorchFunctionMode):
    """Records one run."""

    def __init__(self, root: nn.Module, leaves: Leaves) -> None:
        super().__init__()
        self._root, self._leaves = root, leaves
        self._nodes = Nodes(root)
        self._thread = threading.get_ident()
        self._paths = {module: path for path, module in root.named_modules()}
        self._contents_asked: list[tuple[Tensor, int]] = []
        self._call_module, self._apply = nn.Module.__call__, vars(Function)["apply"]

    def record(self, example: Features, names: tuple[str, ...]) -> Record:
        """Record the forward on the example. names: of the parameters that take it, if it is not by their places.

        Raises OpaqueError.
        """
        nodes, record = self._nodes, self._nodes.record
        with self._patched(), torch.enable_grad():
            given = tuple(tensor.clone() for tensor in example)
            for slot, tensor in enumerate(given):
                nodes.mark(tensor, nodes.add("placeholder", f"input_{slot}"))
            args, kwargs = ((), dict(zip(names, given, strict=True))) if names else (given, {})
            with foreign.foreign_code(partial(opaque, self._root)):
                with self:
                    output = self._run(self._root, args, kwargs)
                if any(tensor._version != version for tensor, version in self._contents_asked):
                    raise TraceError("forward() asks for the contents of a buffer that it writes to")
                nodes.enter(record.graph.output(nodes.argument(output)))
                nodes.end()
        return record

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch calls this in place of each of its functions, with this mode off."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_attribute = name == "__get__"
        if is_attribute:
            name = func.__self__.__name__
        if name == "_set_grad_enabled":  # by no_grad(), which must have its effect
            return func(*args, **kwargs)
        given = tensors_of((args, kwargs))
        if given and (answer := self._answer(name, func, args, kwargs)) is not NotImplemented:
            return answer
        before, generators = Unchanged(given), generator_states()
        with torch.no_grad():
            result = func(*args, **kwargs)
        drawn = not all(map(torch.equal, generators, generator_states()))
        if not drawn and not any(map(self._nodes.is_traced, leaves_of((args, kwargs)))):
            return result
        if result is not None and not tensors_of(result):
            return self._contents(name, result, given)
        if is_attribute:
            node = self._nodes.add("call_function", getattr, (args[0], name))
        elif is_tensor_method_or_property(func):
            node = self._nodes.add("call_method", name, args, kwargs)
        else:
            node = self._nodes.add("call_function", func, args, kwargs)
        if not drawn:
            self._nodes.note_made(node)
        if name in _SELECTIONS or (name == "__getitem__" and any(map(self._selects, given[1:]))):
            self._nodes.record.contents_sized.add(node)
        return None if result is None else self._nodes.named(node, result, before)

    def _answer(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer to a question that needs no contents; NotImplemented where `func` is no such question."""
        tensor = next(leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor))
        node = self._nodes.computed(tensor)
        if name in ("__set__", "__delete__"):
            raise TraceError("forward() sets an attribute of a tensor, which a trace does not keep")
        if name in _ABOUT_GRADIENTS and node is not None:
            raise TraceError("forward() asks about the gradient of a tensor, which a trace does not know")
        if name not in _FACTS and name not in _ABOUT_GRADIENTS:
            return NotImplemented
        if node is None or name not in _SIZES:
            answer = func(*args, **kwargs)
            return NotImplemented if tensors_of(answer) else answer  # type() may also convert
        if name in ("numel", "nelement"):
            self._nodes.check_sized(node)
            return self._nodes.number(self._nodes.add("call_method", name, args), tensor.numel())
        sizes = torch.Size([self._nodes.size_of(node, place) for place in range(tensor.dim())])
        asked = 0 if name == "__len__" else next((each for each in (*args[1:], *kwargs.values())), None)
        return sizes if asked is None else sizes[asked]

    def _selects(self, index: Tensor) -> bool:
        """Tell whether as much as an index has true elements is taken, and contents decide how many these are."""
        return index.dtype in (torch.bool, torch.uint8) and not self._nodes.is_known(index)

    def _contents(self, name: str, answer: Any, asked: list[Tensor]) -> Any:
        """The answer to a question about contents, where these follow from sizes alone or are a buffer's."""
        for tensor in asked:
            if not self._nodes.is_known(tensor):
                how = "for control flow" if name == "__bool__" else f"by {name.strip('_')}()"
                raise ContentsError(
                    f"forward() asks for the contents of a tensor, which differ from batch to batch, {how}"
                )
            self._contents_asked.append((tensor, tensor._version))
        return answer

    def _called(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run in place of every call of a module."""
        if not self._is_recording():
            return self._call_module(module, *args, **kwargs)
        nodes = self._nodes
        nodes.check_modes()
        path = self._paths.get(module)
        if path is None:
            if next(module.parameters(), None) is None:
                return self._call_module(module, *args, **kwargs)
            raise TraceError(f"forward() calls a {type(module).__name__} that is none of its submodules")
        if module in self._leaves:
            held = [(part._buffers, dict(part._buffers)) for part in module.modules()]
            result = self._run_unseen("call_module", path, partial(self._call_module, module), args, kwargs)
            for buffers, before in held:
                buffers.update(before)
            return result
        outer = nodes.call
        call = nodes.call = Call(path, module, parent=outer, start=len(nodes.record.calls))
        outer.items.append(call)
        try:
            with foreign.foreign_code(partial(opaque, module)):
                return self._run(module, args, kwargs)
        finally:
            call.stop = len(nodes.record.calls)
            nodes.call = outer

    def _run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module and record what happens in it. A buffer may be written to, which is recorded; another one not."""
        if isinstance(module, nn.TransformerEncoder):
            _refuse_packing(module, *args, **kwargs)
        before = {part: dict(part._buffers) for part in module.modules()}
        result = self._call_module(module, *args, **kwargs)
        for part, buffers in before.items():
            for name, buffer in part._buffers.items():
                if buffer is not buffers.get(name):
                    raise OpaqueError(module, definition_line(module), f"forward() replaces the buffer {name!r}")
        return result

    def _run_unseen(
        self, op: str, target: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a submodule or a function as one operation."""
        with torch._C.DisableTorchFunction():
            node = self._nodes.add(op, target, args, kwargs)
            before = Unchanged(tensors_of((args, kwargs)))
            with torch.no_grad():
                result = run(*args, **kwargs)
            return self._nodes.named(node, result, before)

    def _as_leaf(self, function: FunctionType) -> Callable[..., Any]:
        """The function to put in the place of one that cannot be traced."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if self._is_recording() and any(map(self._nodes.is_traced, leaves_of((args, kwargs)))):
                return self._run_unseen("call_function", function, function, args, kwargs)
            return function(*args, **kwargs)

        return called

    def _applied(self, kind: type[Function], *args: Any, **kwargs: Any) -> Any:
        """Run in place of every operation with a gradient of its own."""
        apply = self._apply.__get__(None, kind)
        if not self._is_recording():
            return apply(*args, **kwargs)

        def applied(*given: Any, **named: Any) -> Any:
            return apply(*given, **named)

        applied.__name__ = kind.__name__
        return self._run_unseen("call_function", applied, apply, args, kwargs)

    def _len(self, value: Any) -> int:
        """Run in place of `len`, which makes a plain number of every size."""
        if isinstance(value, Tensor) and self._is_recording():
            batch: int = value.size(0)
            return batch
        return len(value)

    def _is_recording(self) -> bool:
        return threading.get_ident() == self._thread and torch._C._is_torch_function_mode_enabled()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self._called(module, *args, **kwargs)

        def applied(kind: type[Function], *args: Any, **kwargs: Any) -> Any:
            return self._applied(kind, *args, **kwargs)

        is_compiling = torch.compiler.is_compiling

        def compiling() -> bool:
            return self._is_recording() or is_compiling()

        with ExitStack() as stack:
            stack.enter_context(unchanged(self._root))
            stack.enter_context(self._leaves.functions_replaced(self._as_leaf))
            stack.enter_context(_replaced(nn.Module, "__call__", called))
            stack.enter_context(_replaced(Function, "apply", classmethod(applied)))
            if self._leaves.tells_of_trace:
                stack.enter_context(_replaced(torch.compiler, "is_compiling", compiling))
            for module in {inspect.getmodule(type(part)) for part in self._root.modules()}:
                if module is not None and not hasattr(module, "len") and not is_torchs(module):
                    stack.enter_context(_replaced(module, "len", self._len))
            yield


@contextmanager
def _replaced(owner: type | ModuleType, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if before is None else setattr(owner, name, before)


def _refuse_packing(module: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> None:
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if given.get("src_key_padding_mask") is not None and getattr(module, "use_nested_tensor", False):
        reason = "in eval mode it packs what a mask of padding leaves; make it with enable_nested_tensor=False"
        raise OpaqueError(module, definition_line(module), reason)
