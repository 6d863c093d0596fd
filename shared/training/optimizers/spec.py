"""What is known of an optimizer: its settings, how it is built, and what it keeps for a parameter.

An optimizer is one file with an `OptimizerSpec` in it and one line in registry.py. It must update each parameter by that
parameter's own gradient and state alone, by operations whose order is the same on every device.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from shared.config import Section

BelowOne = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Section):
    """The keys that every optimizer has; its own ones are fields of a subclass, each with its docstring."""

    learning_rate: PositiveFloat = 0.05
    """What the schedule's factor multiplies."""
    weight_decay: NonNegativeFloat = 0.0
    """Pull towards zero: added to the gradient, or taken off the weight, whichever the optimizer's own paper does."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor that an optimizer keeps for a parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool = False
    """Whether it stays in the host's memory wherever the parameter is."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


StateLayout = dict[str, StateTensor]
"""The tensors kept for one parameter, by the keys of `torch.optim.Optimizer.state[parameter]`, which must be flat."""

SettingsT = TypeVar("SettingsT", bound=OptimizerSettings)


@dataclass(frozen=True, slots=True)
class OptimizerSpec(Generic[SettingsT]):
    """One optimizer."""

    name: str
    """In configurations, recipes and checkpoints."""
    settings: type[SettingsT]
    build: Callable[[list[nn.Parameter], SettingsT], torch.optim.Optimizer]
    """The optimizer over these parameters, with one group: the caller sets its `lr` before each step."""
    state: Callable[[Tensor, SettingsT], StateLayout]
    """What it keeps for such a parameter once it has updated it, exactly: a peer's state is judged by this, and memory
    is counted by it. The parameter may be on the meta device."""


def like(parameter: Tensor) -> StateTensor:
    """A tensor of the parameter's own shape and type, as a moment is."""
    return StateTensor(tuple(parameter.shape), parameter.dtype)


def step_count() -> StateTensor:
    """torch's count of updates: a number on the host, in float32 or the wider type that is torch's default."""
    wide = torch.get_default_dtype() is torch.float64
    return StateTensor((), torch.float64 if wide else torch.float32, on_host=True)
