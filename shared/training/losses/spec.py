"""What is known of a loss: its function, and which labels it takes.

A loss is one file with a `LossSpec` in it and one line in registry.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from torch import Tensor

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Labels(Enum):
    """Which labels a loss takes."""

    CLASSES = auto()
    """The number of a class, for an output whose second dimension is the classes; or a probability of each."""
    ALIKE = auto()
    """One for each number of the output; torch would stretch one to the other's shape and go on."""
    ANY = auto()
    """What the function itself takes."""


@dataclass(frozen=True, slots=True)
class LossSpec:
    """One loss."""

    name: str
    """In configurations and recipes."""
    function: LossFunction
    """Mean over the batch, of (output, labels)."""
    labels: Labels
