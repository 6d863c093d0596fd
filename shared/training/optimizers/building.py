"""An optimizer from its configuration: built so that every device applies the same operations in the same order."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from shared.registry.optimizers import OPTIMIZERS, OptimizerConfig, settings_of


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor that an optimizer keeps for a parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool
    """True if it stays in the host's memory wherever the parameter is."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


StateLayout = dict[str, StateTensor]
"""The tensors kept for one parameter, by the keys of `torch.optim.Optimizer.state[parameter]`."""


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of one block, with the full learning rate; the caller sets each step's.

    parameters: at least one. The caller clips, because clipping needs the whole block's gradient.
    `foreach` is off in all of torch's optimizers: torch turns it on by itself on a GPU only, where it changes the order of
    the operations.
    """
    spec, settings = OPTIMIZERS[config.name], settings_of(config)
    kind = _without_compiler(resolve_name(spec.implementation))
    # Every optimizer's own class takes these, which the base class does not.
    keywords = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, **spec.keywords(settings)}
    return kind(list(parameters), **keywords)


@cache
def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer, which does not import torch's compiler, and has no hooks.

    torch wraps these methods so that `torch.compile` may trace them. We never compile them, and the compiler takes 68
    MB and a second of every process that builds one. Their results are the same: no gradients are recorded in a step.
    """
    step = torch.no_grad()(unwrap(kind.step))
    step.hooked = True  # otherwise torch wraps it again, for hooks and a profiler that we do not use
    return type(kind.__name__, (kind,), {"step": step, "add_param_group": unwrap(kind.add_param_group)})


def state_layout(parameter: Tensor, config: OptimizerConfig) -> StateLayout:
    """Describe the state that the optimizer keeps for a parameter once it has updated it; empty where the parameter is frozen.

    The parameter may be on the meta device.
    """
    if not parameter.requires_grad:
        return {}
    shapes = OPTIMIZERS[config.name].state(tuple(parameter.shape), settings_of(config))
    # torch counts in float32, or in the wider type that is its default.
    counts = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
    return {
        key: StateTensor(kept.shape, counts if kept.is_count else parameter.dtype, kept.on_host)
        for key, kept in shapes.items()
    }


def optimizer_bytes(parameters: Iterable[Tensor], config: OptimizerConfig) -> int:
    """Bytes that the optimizer keeps for these parameters; they may be on the meta device."""
    return sum(tensor.nbytes for parameter in parameters for tensor in state_layout(parameter, config).values())
