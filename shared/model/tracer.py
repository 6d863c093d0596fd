"""One pass of torch.fx over a module: its forward in one mode as a graph, with calls, source lines and kinds of values.

Says which submodule's forward cannot be traced, and leaves it to the caller to make that a leaf. Other threads may run
modules meanwhile, which torch.fx by itself would not allow.
"""

import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn

from shared import foreign
from shared.model.snapshot import same_attributes

_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", __file__, foreign.__file__)


@dataclass(eq=False)
class Call:
    """One call of a module that was traced through: nodes[start:stop], partly its own and partly of calls inside it."""

    path: str
    module: nn.Module
    parent: "Call | None" = None
    start: int = 0
    stop: int = 0
    items: list["Call | fx.Node"] = field(default_factory=list)
    grad_enabled: bool = field(default_factory=torch.is_grad_enabled)
    """Gradient mode in which the call begins."""


class OpaqueError(Exception):
    """The forward of `module` cannot be traced."""

    def __init__(self, module: nn.Module, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.module, self.where, self.reason = module, where, reason


class Leaves:
    """The submodules that are run as they are, by class; torch.nn's containers, which hold anything, one by one."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._classes: set[type] = set()
        self._modules: set[nn.Module] = set()

    def add(self, opaque: OpaqueError) -> None:
        self.reasons.append(f"{type(opaque.module).__name__} at {opaque.where}: {opaque.reason}")
        if type(opaque.module) in _CONTAINERS:
            self._modules.add(opaque.module)
        else:
            self._classes.add(type(opaque.module))

    def __contains__(self, module: nn.Module) -> bool:
        if type(module) in self._classes or module in self._modules:
            return True
        # Classes that the user derives from a layer of torch.nn count, too: their forward reads flags and buffers as
        # the layer's does.
        return any(
            base.__module__.startswith(("torch.nn.", "torch.ao.nn.")) and base not in _CONTAINERS
            for base in type(module).__mro__
        )


class Tracer(fx.Tracer):
    """torch.fx's tracer that remembers calls and lines, and leaves modules of other threads alone."""

    proxy_buffer_attributes = True

    def __init__(self, root: nn.Module, leaves: Leaves) -> None:
        super().__init__()
        self.leaves = leaves
        self.calls: dict[fx.Node, Call] = {}
        self.lines: dict[fx.Node, str] = {}
        self.constants: dict[str, Tensor] = {}
        self.root_call = self.call = Call("", root)
        self._thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (torch.fx's signature)
        return m in self.leaves

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,  # noqa: ARG002
        concrete_args: Any = None,  # noqa: ARG002
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Only the first argument is an input; any other keeps its default."""
        return root_fn, [self.root, self.create_proxy("placeholder", "input", (), {})]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        self._check_gradient_mode()
        node = super().create_node(*args, **kwargs)
        self.calls[node] = self.call
        self.lines[node] = _caller_line()
        self.call.items.append(node)
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        self._check_gradient_mode()
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        call = Call(path, m, parent=self.call, start=len(self.calls))
        self.call.items.append(call)
        self.call = call
        try:
            with foreign.foreign_code(partial(_opaque, m)):
                result = super().call_module(m, forward, args, kwargs)
                _refuse_replaced_buffers(m, [m])
            return result
        finally:
            call.stop = len(self.calls)
            self.call = call.parent or call

    def _check_gradient_mode(self) -> None:
        if torch.is_grad_enabled() != self.call.grad_enabled:
            raise fx.proxy.TraceError(
                "forward() switches gradients on or off, which a trace does not keep (to freeze layers, use "
                "requires_grad_(False))"
            )


def trace_in_mode(root: nn.Module, leaves: Leaves, *, training: bool) -> Tracer:
    """Record the forward of `root` in one mode. Raises OpaqueError.

    While torch.fx traces, it replaces methods of nn.Module for the whole process: the caller lets one thread in at a time.
    """
    attributes_before = set(vars(root))
    with same_attributes(root), torch.enable_grad():
        tracer = Tracer(root, leaves)
        root.train(training)
        with foreign.foreign_code(partial(_opaque, root)):
            tracer.trace(root)
        _refuse_replaced_buffers(root, root.modules())
        # torch.fx leaves the constants that it meets on the module.
        tracer.constants = {name: vars(root)[name] for name in vars(root).keys() - attributes_before}
    return tracer


def tensor_shapes(tracer: Tracer, example: Tensor) -> list[torch.Size | None]:
    """Return the shape of the value of each node of the graph, None for other values than tensors. Raises OpaqueError.

    The caller keeps buffers, and has put the module in the mode in which it was traced.
    """
    runner = _Runner(tracer)
    with torch.no_grad():
        runner.run(example.clone())
    return runner.shapes


class _Runner(fx.Interpreter):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer.root, graph=tracer.graph)
        self.shapes: list[torch.Size | None] = []
        self._tracer = tracer

    def fetch_attr(self, target: str) -> Any:
        constant = self._tracer.constants.get(target)
        return super().fetch_attr(target) if constant is None else constant

    def run_node(self, n: fx.Node) -> Any:
        def opaque(cause: BaseException) -> OpaqueError:
            return OpaqueError(self._tracer.calls[n].module, self._tracer.lines[n], _reason(cause))

        with foreign.foreign_code(opaque):  # an operation may have done without its input while it was traced
            value = super().run_node(n)
        self.shapes.append(value.shape if isinstance(value, Tensor) else None)
        return value


def _refuse_replaced_buffers(blamed: nn.Module, modules: Iterable[nn.Module]) -> None:
    """A buffer may be written to, which is recorded; that another is put in its place is not."""
    for module in modules:
        for name, buffer in module._buffers.items():
            if isinstance(buffer, fx.Proxy):
                raise OpaqueError(blamed, definition_line(blamed), f"forward() replaces the buffer {name!r}")


def _opaque(module: nn.Module, cause: BaseException) -> BaseException:
    """Convert `cause`, which the forward of `module` has raised on a proxy, to the error to raise."""
    if isinstance(cause, OpaqueError):
        return cause
    return OpaqueError(module, _failing_line(module, cause.__traceback__), _reason(cause))


def _reason(cause: BaseException) -> str:
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(cause).__name__


def _failing_line(module: nn.Module, trace_back: TracebackType | None) -> str:
    """Find the line at which the user's code failed: the innermost frame that is neither torch's nor ours."""
    frames = [frame for frame in traceback.extract_tb(trace_back) if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else definition_line(module)


def definition_line(module: nn.Module) -> str:
    """Find the line at which the forward of a module begins."""
    code = inspect.unwrap(type(module).forward).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _caller_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
