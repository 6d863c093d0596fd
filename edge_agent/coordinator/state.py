"""The state of a run, as far as it decides what follows from an event."""

from dataclasses import dataclass
from enum import Enum

from shared.errors import IsthmusError


class Phase(Enum):
    """Phases of a run in one session. Evaluations, checkpoints and pauses belong to training: the same follows there."""

    JOINING = "joining"
    """The trainers are joined, at the beginning or again."""
    TRAINING = "training"
    CHANGING = "changing"
    """Another placement comes into force."""
    ENDING = "ending"
    """No step is done any more. After a divergence the weights of the newest checkpoint are brought home."""


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """A run in one session."""

    phase: Phase = Phase.JOINING
    waits: bool = True
    """True if the run waits for a trainer that is away, so that `trainer.give_up_seconds` is not 0."""
    goes_back: bool = False
    """True if all workers have to go back to a checkpoint before they train."""
    mending: IsthmusError | None = None
    """The failure after which the trainers are joined; None at the beginning, and where a trainer is left out or stops."""
    failures: int = 0
    """Failures other than lost links and lost sessions, since the run last passed `beyond_step`."""
    refusals: int = 0
    """Failures among these that are refusals."""
    beyond_step: int | None = None
    """Step that every worker must have done before failures are forgotten; None without a failure."""
    began_again: bool = False
    """True if an earlier session of this process was lost, and this one began from the first step."""
