"""The losses by name, which labels each takes, and with which arguments. A new loss is its line here, and a function where
torch has none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Self, TypeGuard

from pydantic import Field, JsonValue, model_validator

from shared.config import ShortSection
from shared.config.arguments import check_arguments


class Labels(Enum):
    """The labels that a loss takes."""

    CLASSES = auto()
    """The number of a class, for an output whose second dimension is the classes; or a probability of each."""
    TOKENS = auto()
    """The number of a class for each place of a sequence, for an output whose last dimension is the classes; -100 counts for
    nothing."""
    ALIKE = auto()
    """One for each number of the output; torch would stretch one to the other's shape and go on."""
    ANY = auto()
    """Labels that the function itself judges."""


class Argument(Enum):
    """The values that an argument of a loss takes; each is what a sentence says of it."""

    SHARE = "a number of 0 to 1"
    CLASSES = "a list of numbers of 0 or more, one for each class"
    """The mean is weighted by them, so it is not that of parts of the batch."""
    ALIKE = "a list of numbers of 0 or more that can be stretched to the output of a sample"

    def takes(self, value: JsonValue) -> bool:
        """Tell whether this is one of the values, as far as can be told without the model's output."""
        if self is Argument.SHARE:
            return _is_number(value) and value <= 1
        if not isinstance(value, list) or not value:
            return False
        if self is Argument.ALIKE and isinstance(value[0], list):
            return all(isinstance(each, list) and len(each) == len(value[0]) and self.takes(each) for each in value)
        return all(map(_is_number, value))


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class LossSpec:
    """One loss."""

    name: str
    """In configurations and recipes."""
    implementation: str
    """The function, as `package.module:name`: mean over the batch, of (output, labels)."""
    labels: Labels
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    """Keyword arguments that it takes beside."""


_OF_CLASSES = {"weight": Argument.CLASSES, "label_smoothing": Argument.SHARE}

LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec("cross_entropy", "torch.nn.functional:cross_entropy", Labels.CLASSES, _OF_CLASSES),
        LossSpec(
            "token_cross_entropy", "shared.training.losses.tokens:token_cross_entropy", Labels.TOKENS, _OF_CLASSES
        ),
        LossSpec("mse", "torch.nn.functional:mse_loss", Labels.ALIKE),
        LossSpec("l1", "torch.nn.functional:l1_loss", Labels.ALIKE),
        LossSpec(
            "bce_with_logits",
            "torch.nn.functional:binary_cross_entropy_with_logits",
            Labels.ALIKE,
            {"pos_weight": Argument.ALIKE},
        ),
    )
}


class LossConfig(ShortSection):
    """The loss that training minimises. A name alone stands for a loss without arguments."""

    name: Annotated[
        str, Field(json_schema_extra={"allowed": f"one of {', '.join(LOSSES)}, or package.module:function"})
    ] = "cross_entropy"
    """Loss that is minimised. A function of the user's own must be allowed by the trainer's operator too."""
    kwargs: dict[str, JsonValue] = Field(default={}, examples=[{"label_smoothing": 0.1}])
    """Keyword arguments: weight, a number for each class, and label_smoothing of cross_entropy and token_cross_entropy,
    pos_weight of bce_with_logits, and for a function of the user's own what it takes. A list of numbers becomes a tensor."""

    @model_validator(mode="after")
    def _arguments_suit(self) -> Self:
        what = f"loss {self.name!r}"
        check_arguments(what, self.kwargs)
        if "reduction" in self.kwargs:
            raise ValueError(f"{what} is given a reduction; a loss is the mean over the batch, so leave it out")
        if (spec := LOSSES.get(self.name)) is None:
            return self
        for key, value in self.kwargs.items():
            if (argument := spec.arguments.get(key)) is None:
                raise ValueError(f"{what} takes no {key!r}; it takes {', '.join(spec.arguments) or 'no arguments'}")
            if not argument.takes(value):
                raise ValueError(f"{key} of {what} is {_shown(value)}; it must be {argument.value}")
        return self

    @property
    def labels(self) -> Labels:
        """The labels that it takes; any where it is a function of a user's own."""
        return LOSSES[self.name].labels if self.name in LOSSES else Labels.ANY

    @property
    def is_divisible(self) -> bool:
        """Tell whether the means of parts of a batch, weighted by their samples, are the mean of the batch."""
        return self.labels is not Labels.TOKENS and Argument.CLASSES not in self.arguments.values()

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments that are given to one of `LOSSES`; none of a user's own function."""
        known = LOSSES[self.name].arguments if self.name in LOSSES else {}
        return {key: argument for key, argument in known.items() if key in self.kwargs}


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
