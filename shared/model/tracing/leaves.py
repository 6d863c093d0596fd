"""Parts of a model that are run as they are because they cannot be traced: submodules, and functions of the user's."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from shared import foreign
from shared.model.tracing.record import ContentsError

_CONTAINERS = (
    *(nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer),
)
"""The classes of torch.nn that are looked into: those that hold layers, and do little beside calling them."""
_NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}", foreign.__file__)


class OpaqueError(Exception):
    """The forward of `module` cannot be traced; nor can `function`, which it called on the way, where there is one."""

    def __init__(
        self,
        module: nn.Module,
        where: str,
        reason: str,
        function: "FunctionLeaf | None" = None,
        *,
        asks_contents: bool = False,
    ) -> None:
        super().__init__(where, reason)
        self.module, self.where, self.reason, self.function = module, where, reason, function
        self.asks_contents = asks_contents
        """True if the forward asks for the contents of a tensor there."""


class FunctionLeaf:
    """A function of the user's at the places that name it."""

    def __init__(self, function: FunctionType, places: list[dict[str, Any]]) -> None:
        self.function, self.places = function, places


class Leaves:
    """The submodules that are run as they are, by class, or one by one where the class is torch.nn's and holds anything;
    and the functions."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.tells_of_trace = False
        """True if `torch.compiler.is_compiling` says yes, so that a forward that can do without contents does not ask."""
        self._classes: set[type] = set()
        self._modules: set[nn.Module] = set()
        self._functions: list[FunctionLeaf] = []

    def add(self, found: OpaqueError, root: nn.Module) -> bool:
        """Let the function, or else the module, be run as it is. Returns False where that is the root: nothing is left then.

        A forward that asks for contents is first told that it is traced.
        """
        leaf = found.function
        if found.asks_contents and not self.tells_of_trace:
            self.tells_of_trace = True
        elif leaf is not None and all(leaf.function is not known.function for known in self._functions):
            self._functions.append(leaf)
        elif found.module is root:
            return False
        else:
            self.reasons.append(f"{type(found.module).__name__} at {found.where}: {found.reason}")
            if type(found.module) in _CONTAINERS:
                self._modules.add(found.module)
            else:
                self._classes.add(type(found.module))
        return True

    def __contains__(self, module: nn.Module) -> bool:
        if type(module) in self._classes or module in self._modules:
            return True
        # Classes that the user derives from a layer of torch.nn count, too: their forward reads flags and buffers as
        # the layer's does.
        return any(
            base.__module__.startswith(("torch.nn.", "torch.ao.nn.")) and base not in _CONTAINERS
            for base in type(module).__mro__
        )

    @contextmanager
    def functions_replaced(self, replacement: Callable[[FunctionType], Callable[..., Any]]) -> Iterator[None]:
        """Have every function that is a leaf replaced where it is named."""
        replaced = [
            (place, name, value)
            for leaf in self._functions
            for place in leaf.places
            for name, value in list(place.items())
            if value is leaf.function
        ]
        try:
            for place, name, function in replaced:
                place[name] = replacement(function)
            yield
        finally:
            for place, name, function in replaced:
                place[name] = function


def opaque(module: nn.Module, cause: BaseException) -> BaseException:
    """Convert `cause`, which was raised while the forward of `module` was traced, to the error to raise."""
    if isinstance(cause, OpaqueError):
        return cause
    frames = _users_frames(cause.__traceback__)
    where = f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else definition_line(module)
    function = _innermost_function([frame for frame, _ in frames])
    return OpaqueError(module, where, _reason(cause), function, asks_contents=isinstance(cause, ContentsError))


def definition_line(module: nn.Module) -> str:
    """Find the line at which the forward of a module begins."""
    code = inspect.unwrap(type(module).forward).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def is_torchs(module: ModuleType) -> bool:
    """Tell whether a Python module is part of torch."""
    return module.__name__.partition(".")[0] == "torch"


def caller_line() -> str:
    """Find the user's line that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _reason(cause: BaseException) -> str:
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(cause).__name__


def _users_frames(trace_back: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames that are neither torch's nor ours, the innermost last, with the line that failed."""
    walked = traceback.walk_tb(trace_back)
    return [(frame, line) for frame, line in walked if not frame.f_code.co_filename.startswith(_NOT_THE_USERS)]


def _innermost_function(frames: list[FrameType]) -> FunctionLeaf | None:
    """The innermost of these frames that is of a function which can be run as it is: one that a module's globals name."""
    for caller, callee in zip(reversed(frames[:-1]), reversed(frames), strict=False):
        places: list[dict[str, Any]] = [callee.f_globals]
        if caller.f_globals is not callee.f_globals:
            places.append(caller.f_globals)
        function = _named(callee, callee.f_globals)
        if function is not None:
            return FunctionLeaf(function, places)
    return None


def _named(frame: FrameType, names: Mapping[str, Any]) -> FunctionType | None:
    function = names.get(frame.f_code.co_name)
    if isinstance(function, FunctionType) and function.__code__ is frame.f_code:
        return function
    return None
