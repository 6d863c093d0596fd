"""The recipe: how weights are updated, told to both sides so that neither has to ask during training.

It travels as JSON and is judged by these types on arrival. What the numbers do is `optimizer.py` and `schedule.py`.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from shared.config import Section

_BelowOne = Annotated[float, Field(ge=0, lt=1)]

_OPTIMIZER_KEYS = {
    "sgd": {"momentum", "nesterov"},
    "adam": {"betas", "eps"},
    "adamw": {"betas", "eps"},
    "rmsprop": {"momentum", "alpha", "eps"},
}
_SCHEDULE_KEYS = {
    "constant": set[str](),
    "multistep": {"milestones", "gamma"},
    "exponential": {"gamma"},
    "cosine": {"period", "floor"},
}


class OptimizerConfig(Section):
    name: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    """torch's optimizer of that name."""
    learning_rate: PositiveFloat = 0.05
    """What the schedule's factor multiplies."""
    momentum: _BelowOne = 0.0
    """Share of the last update that is kept (sgd, rmsprop)."""
    nesterov: bool = False
    """Nesterov's form of momentum (sgd)."""
    weight_decay: NonNegativeFloat = 0.0
    """Pull towards zero: added to the gradient, with adamw taken off the weight."""
    betas: tuple[_BelowOne, _BelowOne] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square (adam, adamw)."""
    eps: PositiveFloat | None = Field(default=None, examples=[1e-8])
    """Added to the divisor against division by zero (all but sgd). Left out, torch's default for the optimizer."""
    alpha: _BelowOne = 0.99
    """Decay of the running mean of the squared gradient (rmsprop)."""
    clip_norm: PositiveFloat | None = Field(default=None, examples=[1.0])
    """Largest norm of a block's gradient; a longer one is scaled down to it. Per block, and not for the whole network,
    so that the result does not depend on where the cut is."""

    @model_validator(mode="after")
    def _keys_suit_the_optimizer(self) -> Self:
        _refuse_unused(self, self.name, _OPTIMIZER_KEYS)
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov is true but momentum is 0; it needs a momentum above 0")
        return self


class ScheduleConfig(Section):
    """How the learning rate goes; positions count from step 0, the warm-up included."""

    name: Literal["constant", "multistep", "exponential", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up."""
    every: Literal["step", "epoch"] = "epoch"
    """What milestones, period and decay count in; counted from the start of training, the warm-up included."""
    milestones: tuple[PositiveInt, ...] = ()
    """Where the factor is multiplied by gamma, in increasing order (multistep)."""
    gamma: PositiveFloat = 0.1
    """The factor of one milestone (multistep) or of one step or epoch (exponential)."""
    period: PositiveInt | None = Field(default=None, examples=[10])
    """How long the fall from 1 to the floor takes (cosine). Left out, the whole training."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lowest factor (cosine), held once it is reached."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the learning rate rises linearly to its full value, always counted in steps."""

    @model_validator(mode="after")
    def _keys_suit_the_schedule(self) -> Self:
        _refuse_unused(self, self.name, _SCHEDULE_KEYS)
        if self.name == "multistep" and not self.milestones:
            raise ValueError("a multistep schedule needs milestones")
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ValueError(f"milestones are {list(self.milestones)}; they must increase")
        return self


class Recipe(Section):
    """All that decides an update besides the weights and the batch."""

    optimizer: OptimizerConfig
    """How weights follow gradients."""
    schedule: ScheduleConfig
    """How the learning rate follows the step."""
    loss: str
    """What is minimised, by name."""
    seed: int
    """Decides the first weights and dropout."""
    frozen: tuple[str, ...] = ()
    """What does not learn: parameters whose qualified name is, or lies under, one of these."""
    steps_per_epoch: PositiveInt
    """Turns a step into an epoch."""
    total_steps: PositiveInt
    """Length of the whole training as the schedule sees it."""


def _refuse_unused(section: Section, name: str, keys_of: dict[str, set[str]]) -> None:
    """A key that only other choices of `name` use must stand at its default: set, it would silently do nothing."""
    for key in _in_field_order(section, set[str]().union(*keys_of.values()) - keys_of[name]):
        if getattr(section, key) != type(section).model_fields[key].default:
            users = ", ".join(choice for choice, keys in keys_of.items() if key in keys)
            raise ValueError(f"{name} has no {key}, which belongs to {users}; leave it out or choose one of these")


def _in_field_order(section: Section, keys: Iterable[str]) -> list[str]:
    return [key for key in type(section).model_fields if key in keys]
