"""A bound on building a model, held while foreign code builds it: modules, bytes and seconds.

A request is counted before it is granted, so a factory whose arguments come from a peer cannot take memory or time
first and be judged afterwards. What a factory allocates past torch (a list of numbers, an array of numpy) is not seen.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from shared.errors import TooLargeError
from shared.foreign import Interruption

_MODULE_BEGINS = nn.Module.__init__.__code__


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """The most that building one model may take. bytes: of all tensors that are made on the way."""

    bytes: int
    modules: int
    seconds: float


@contextmanager
def bounded_build(limits: BuildLimits | None) -> Iterator[None]:
    """Build on this thread within `limits`; None sets no bound. Raises TooLargeError.

    Tensors of the meta device count as if they took memory: a model that is too large is ended at its first large tensor.
    """
    if limits is None:
        yield
        return
    watch = _Watch(limits)
    before = sys.getprofile()
    sys.setprofile(watch.called)
    try:
        with _Allocations(watch):
            yield
    except Interruption:
        pass  # said below, as it is where foreign code swallowed the interruption
    finally:
        sys.setprofile(before)
    if watch.exceeded:
        raise TooLargeError(watch.exceeded)


class _Watch:
    def __init__(self, limits: BuildLimits) -> None:
        self.exceeded = ""
        """Name of the limit that was exceeded; empty while none was."""
        self._limits = limits
        self._modules = 0
        self._bytes = 0
        self._deadline_seconds = time.monotonic() + limits.seconds

    def called(self, frame: FrameType, event: str, _argument: object) -> None:
        """Python's profiler calls this whenever a function is called or returns."""
        if event == "call" and frame.f_code is _MODULE_BEGINS:
            self._modules += 1
            if self._modules > self._limits.modules:
                self._end(f"the model has more than {self._limits.modules} modules (server.max_session_modules)")
        if time.monotonic() > self._deadline_seconds:
            self._end(f"the model was not built within {self._limits.seconds:g} s (server.max_build_seconds)")

    def allocates(self, count: int) -> None:
        """Count bytes before they are taken."""
        self._bytes += count
        if self._bytes > self._limits.bytes:
            self._end(
                f"building the model takes more than {self._limits.bytes} bytes of memory (server.max_session_bytes)"
            )

    def _end(self, reason: str) -> None:
        self.exceeded = reason
        raise Interruption(reason)


class _Allocations(TorchDispatchMode):
    """Sees every operation of torch on this thread before it is done."""

    def __init__(self, watch: _Watch) -> None:
        TorchDispatchMode.__init__(self)
        self._watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._watch.allocates(_result_bytes(func, args, kwargs))
        return func(*args, **kwargs)


def _result_bytes(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of the new tensors that an operation makes, found by doing it on the meta device; 0 where values decide."""
    meta_args, meta_kwargs = tree_map_only(Tensor, _on_meta, (args, kwargs))
    given = {tensor.untyped_storage()._cdata for tensor in _tensors((meta_args, meta_kwargs))}
    if any(argument.name == "device" for argument in operation._schema.arguments):
        meta_kwargs["device"] = torch.device("meta")
    try:
        results = _tensors(operation(*meta_args, **meta_kwargs))
    except (RuntimeError, TypeError, ValueError, IndexError):  # the operation has no such form, or fails in earnest too
        return 0
    storages = {result.untyped_storage()._cdata: result.untyped_storage().nbytes() for result in results}
    return sum(count for storage, count in storages.items() if storage not in given)


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
