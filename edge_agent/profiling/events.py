"""The events of a measurement: how long it will take, and how far it is."""

from dataclasses import dataclass

from shared.events import Event


@dataclass(frozen=True, slots=True)
class Estimated(Event):
    """It is known what the measurement costs, before it begins."""

    line: str
    """A line for the user; there may be several."""


@dataclass(frozen=True, slots=True)
class PieceDone(Event):
    """One more piece of a long work is done. Each work has a type of its own."""

    done: int
    total: int
    """Number of pieces as far as is known; there may be more."""


class PieceMeasured(PieceDone):
    """A cut, a sub-model, or a run of blocks was measured."""

    __slots__ = ()


class CopyTrained(PieceDone):
    """A copy of the model was trained for a calibration."""

    __slots__ = ()
