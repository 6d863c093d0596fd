"""Measurements, in the words that all of planning shares: blocks, bytes and seconds with their bounds, bit widths."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shared.bounds import MOST_SECONDS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FLOAT32_BITS = 32
"""Width of a feature that is sent as it is. Narrower ones are whole bits. This module does not know which of them a
codec has."""

MOST_BYTES = 2**40
"""Bytes of a model, of a batch or of a sample at most."""
Bytes = Annotated[float, Field(ge=0, le=MOST_BYTES)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS)]

Entries = tuple[float | None, ...]
"""One number for each cut 0..L; None if not measured."""


def is_bit_width(value: object) -> TypeGuard[int]:
    """Tell whether a number can be the bits of an element."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= FLOAT32_BITS


@dataclass(frozen=True)
class ProfiledBlock:
    """A block, and the bytes of a move of it."""

    name: str
    bytes: Bytes
    """Bytes of parameters, buffers and optimizer state."""
    parameter_bytes: Bytes | None = None
    """Bytes of its trained parameters alone. None if they are unknown."""
    min_samples: Annotated[int, Field(ge=1)] = 1
    """The fewest samples that a part of it can compute on: 2 with batch-norm."""
    whole: bool = False
    """True if one worker has to run it on all samples of a batch, as where the loss is no mean of those of parts."""
    reads_raw: bool = False
    """True if it computes on raw samples, or on what counts as such."""


class Linear(NamedTuple):
    """Seconds that grow with a number of samples or bytes, beginning at a constant (paper 000, Fig. 11)."""

    seconds: float
    seconds_per_unit: float = 0.0

    def at(self, units: float) -> float:
        """Return the seconds for so many."""
        return self.seconds + self.seconds_per_unit * units

    def times(self, factor: float) -> "Linear":
        """Return the same, multiplied."""
        return Linear(self.seconds * factor, self.seconds_per_unit * factor)


def bytes_before(blocks: Iterable[ProfiledBlock]) -> tuple[float, ...]:
    """Return the bytes of the blocks [0, c), for each cut c."""
    return tuple(itertools.accumulate((block.bytes for block in blocks), initial=0.0))


def at_bits(float32_bytes: Entries, bits: int) -> Entries:
    """Return the bytes by cut with so many bits a number, of those in float32."""
    return tuple(None if size is None else size * bits / FLOAT32_BITS for size in float32_bytes)
