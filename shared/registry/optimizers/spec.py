"""The known facts of an optimizer: its settings, the place of its class, and the state that it keeps for a parameter.

An optimizer is one file with an `OptimizerSpec` in it and one line in registry.py; where torch has none, its class is a file in
`shared/training/optimizers/`. It must update each parameter by that parameter's own gradient and state alone, by operations
whose order is the same on every device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from shared.config import Section

BelowOne = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Section):
    """The keys that every optimizer has; its own ones are fields of a subclass, each with its docstring."""

    learning_rate: PositiveFloat = 0.05
    """Base rate, which the schedule's factor multiplies."""
    weight_decay: NonNegativeFloat = 0.0
    """Pull towards zero: added to the gradient, or taken off the weight, whichever the optimizer's own paper does."""


class OptimizerGroup(Section):
    """Some parameters, by name, with a rate or a decay of their own."""

    match: tuple[str, ...] = Field(min_length=1, strict=False)
    """Names of the parameters, as in model.frozen. One that fits several groups is in the first."""
    learning_rate: PositiveFloat | None = None
    """Base rate of the group, which the schedule's factor multiplies. Left out, the optimizer's own."""
    weight_decay: NonNegativeFloat | None = None
    """Weight decay of the group. Left out, the optimizer's own."""

    @model_validator(mode="after")
    def _something_differs(self) -> Self:
        if self.learning_rate is None and self.weight_decay is None:
            raise ValueError("a group needs a learning_rate or a weight_decay of its own")
        return self


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateShape:
    """The form of one tensor that an optimizer keeps for a parameter."""

    shape: Shape
    is_count: bool = False
    """True if it has the type in which torch counts updates, and not the parameter's."""
    on_host: bool = False
    """True if it stays in the host's memory wherever the parameter is."""


STEP_COUNT = StateShape((), is_count=True, on_host=True)
"""The count of updates of torch's optimizers."""

StateShapes = dict[str, StateShape]
"""The tensors kept for one parameter, by the keys of `torch.optim.Optimizer.state[parameter]`, which must be flat."""


@dataclass(frozen=True, slots=True)
class Momentum:
    """The tensor along which weights whose updates come late go on when no further gradient comes.

    An update moves a weight by the learning rate times this tensor; with `square`, as Adam does, times the tensor over the root
    of the mean of squares, both without their bias.
    """

    key: str
    """Name of the tensor in the state of a parameter."""
    decay: float
    """Share of the tensor that is left after an update."""
    lead: float = 1.0
    """Factor by which weights are predicted farther than the tensor alone would move them."""
    entries: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the optimizer's groups that make its momentum this long while updates come late; empty where it is as long
    anyway. With them a steady gradient moves a weight as fast, and the tensor has the same scale. Without an earlier update the
    tensor begins with zeros."""
    is_own: bool = True
    """False if the optimizer keeps no such tensor but while updates come late: it begins with zeros whenever they begin to,
    so that weights move by little at first."""
    square: str | None = None
    """Name of the running mean of squared gradients; None where nothing is divided by it."""
    square_decay: float = 0.0
    """Share of that mean that is left after an update."""
    eps: float = 0.0
    """Added to the root."""


SettingsT = TypeVar("SettingsT", bound=OptimizerSettings)


@dataclass(frozen=True, slots=True)
class OptimizerSpec(Generic[SettingsT]):
    """One optimizer."""

    name: str
    """In configurations, recipes and checkpoints."""
    settings: type[SettingsT]
    implementation: str
    """Its class, as `package.module:name`. It takes groups of parameters, `lr` and `weight_decay`, and the caller sets the
    groups' `lr` before each step."""
    keywords: Callable[[SettingsT], dict[str, Any]]
    """Function from the settings to the other keyword arguments of the class."""
    state: Callable[[Shape, SettingsT], StateShapes] | None
    """State that the optimizer keeps for a parameter of this shape once it has updated it, exactly: a peer's state is
    judged by this, and memory is counted by it. None where it is found by a try."""
    momentum: Callable[[SettingsT], Momentum | None] = lambda _settings: None
    """Function that gives the momentum, along which weights are predicted; None where there is none to predict them by."""
    is_elementwise: bool = True
    """True if it updates each element by that element's own gradient and state, so that a group may update ranges of a
    parameter one after the other."""
