"""The events that are told to the coordinator. The first line of each is its name on the page; times are values in seconds."""

from dataclasses import dataclass

from shared.errors import IsthmusError


class RunEvent:
    """Something that happened to a run. Its types are frozen dataclasses."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SessionBegun(RunEvent):
    """A session is open."""

    is_resumed: bool
    """True if this process has no state but checkpoints."""
    is_again: bool
    """True if an earlier session of this process was lost."""


@dataclass(frozen=True, slots=True)
class LinkEnded(RunEvent):
    """The link to a trainer has failed."""

    failure: IsthmusError
    was_up: bool
    """False if the trainer has not answered for as long as the user allows, or has refused the link."""
    is_of_evaluation: bool
    """True for a link of an evaluation, which a trainer ends with the link."""


@dataclass(frozen=True, slots=True)
class WorkFailed(RunEvent):
    """Steps, or the joining of the trainers, have failed."""

    failure: IsthmusError
    is_own: bool
    """True if the computing of this device has failed."""
    done_step: int
    """First step that not every worker has done."""
    begun_step: int
    """Next step to begin."""


@dataclass(frozen=True, slots=True)
class TrainerSilent(RunEvent):
    """A trainer does not answer, and no step is done."""

    seconds: float
    """Time since its first unanswered question."""
    may_begin_again: bool
    """True if it has no state to lose, so that another one may stand in for it."""
    stand_in_after_seconds: float
    replace_after_seconds: float | None
    has_checkpoint: bool
    """True if there is a checkpoint of all workers."""


@dataclass(frozen=True, slots=True)
class StoodInFor(RunEvent):
    """Another trainer has the session under the name of one that is away."""


@dataclass(frozen=True, slots=True)
class StepHeldUp(RunEvent):
    """Everybody answers, and no step is done."""

    is_device: bool
    """True if this device holds the step up."""
    is_trainer: bool
    """True if one trainer is known to hold it up."""
    may_begin_again: bool
    """True if that has no state to lose, so that another one may stand in for it."""
    seconds: float
    """Time without progress."""
    limit_seconds: float
    """Time after which that is a stall."""
    patience_seconds: float
    """Time for which the run waits then."""
    replace_after_seconds: float | None
    has_checkpoint: bool
    """True if there is a checkpoint of all workers."""
    is_elsewhere: bool
    """True if the trainer has no blocks in that checkpoint."""


@dataclass(frozen=True, slots=True)
class TrainersParted(RunEvent):
    """A link between two trainers is down, both answer, and no step is done."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TrainersAnswered(RunEvent):
    """All trainers that are needed have been asked for their state."""

    some_lost: bool
    """True if one has no state from which this device goes on."""
    may_begin_again: bool
    """True if each of those has none to lose."""


@dataclass(frozen=True, slots=True)
class TrainersJoined(RunEvent):
    """All trainers are joined."""


@dataclass(frozen=True, slots=True)
class BoundaryReached(RunEvent):
    """A step boundary is reached."""

    is_end: bool
    """True if all steps are done."""
    is_leaving: bool
    """True for a member of a group that leaves it after a step that is still to do."""
    must_stop: bool
    """True if the run is to stop, or a trainer is about to, and nobody takes over."""
    is_change_due: bool
    """True if another placement is requested, and its trainers are prepared for it."""
    is_paused: bool
    """True if an operator pauses the run."""


@dataclass(frozen=True, slots=True)
class ChangeDone(RunEvent):
    """The other placement is in force, or taken back."""


@dataclass(frozen=True, slots=True)
class ChangeFailed(RunEvent):
    """The other placement could not come into force."""

    failure: IsthmusError | None
    """None if the blocks were under way for too long."""
    attempts: int
    """Attempts to put it into force, with this one."""


@dataclass(frozen=True, slots=True)
class TrainerStopping(RunEvent):
    """A trainer is about to stop."""

    has_blocks: bool
    is_handed_over: bool
    """True if another one is asked to take its blocks over, and would."""


@dataclass(frozen=True, slots=True)
class WaySought(RunEvent):
    """The link to a trainer is down for a moment, and the others are asked for a way to it."""

    answers_itself: bool
    is_reached: bool
    """True if another trainer can dial it."""


@dataclass(frozen=True, slots=True)
class WayTaken(RunEvent):
    """A trainer is reached through another one."""

    is_chosen: bool
    """True if an engine or a pin chooses the trainer."""
    has_blocks: bool
    is_free: bool
    """True if the one on the way has no blocks."""


@dataclass(frozen=True, slots=True)
class StopReached(RunEvent):
    """The run has stopped at a boundary, and its last checkpoint is taken."""

    is_asked: bool
    """True if the run is to end; False if a trainer is about to stop, and nobody takes over."""


@dataclass(frozen=True, slots=True)
class StepsDone(RunEvent):
    """All steps are done, and the weights are here."""


@dataclass(frozen=True, slots=True)
class GoodWeightsWanted(RunEvent):
    """The loss has diverged, and the weights of the newest checkpoint are wanted."""


@dataclass(frozen=True, slots=True)
class SessionGone(RunEvent):
    """Training has ended because no trainer has a state to go on from."""

    has_checkpoint: bool
    """True if there is a checkpoint of all workers."""
    is_closed: bool
    """True if an operator of a trainer has closed the session."""
    steps: int
    """Steps that are done in it."""
    is_member: bool
    """True for a member of a group, which may wait for others through many losses."""
